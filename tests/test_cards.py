"""Cards: what they say, what the Hub reads in them, and that no name from outside can say anything else."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, parse_eval_result_entries
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryConfig
from mathneuro_hub.adapter.config import WeightRecord
from mathneuro_hub.errors import HubError
from mathneuro_hub.evaluation import EvaluationReport, EvaluationRun, EvaluationSettings, MetricScores, TaskScores
from mathneuro_hub.masks import Mask, MaskSet
from mathneuro_hub.publishing.amend import BEGIN, END, amend
from mathneuro_hub.publishing.card import render_card, save_adapter
from mathneuro_hub.publishing.metadata import check_metadata, is_hub_id, join, leaderboard_entries, split

COMMIT = "1f" * 20
BASE_CARD = "---\nlicense: other\nlicense_name: base-terms\nlicense_link: ./LICENSE.md\n---\n# Base\n"


def adapter(
    base: str = "org/base",
    revision: str | None = COMMIT,
    scale: float = 1.1,
    data: str = "openai/gsm8k",
    hub_id: str | None = "openai/gsm8k",
    kind: str = "up_proj",
    text: str = "keep",
) -> NeurosurgeryAdapter:
    """An adapter of one weight; every word that comes from outside can be chosen."""
    mask = Mask.from_dense(torch.eye(4, dtype=torch.bool))
    name = f"layers.0.{kind}.weight"
    record = {"name": data, "hub_id": hub_id, "split": text, "samples": 3, "tokens": 30, "truncated": 1}
    config = NeurosurgeryConfig(
        method="mathneuro",
        parameters={text: text},
        scale=scale,
        base_model_name_or_path=base,
        revision=revision,
        base_fingerprint="0" * 32,
        weights={name: WeightRecord((4, 4), 4, "0", "0")},
        total=100,
        left_out=((text, 84, text),),
        data={"skill": {**record, "settings": {"max_length": 8}}, "contrasts": []},
        versions={"torch": text},
    )
    return NeurosurgeryAdapter(config, MaskSet({name: mask}))


def run(values: list[float], task: str = "gsm8k_cot", limit: int | None = None, text: str = "acc") -> EvaluationRun:
    metric = MetricScores(task, text, "strict-match", True, {str(i): value for i, value in enumerate(values)})
    conditions = EvaluationSettings(
        model="org/base",
        tasks=(task,),
        batch_size=8,
        limit=limit,
        num_fewshot=None,
        apply_chat_template=False,
        seed=0,
        max_length=128,
        dtype="bfloat16",
        device=f"cuda ({text})",
        include_path=None,
        versions={"lm_eval": "0.4.13"},
    )
    return EvaluationRun("base", {task: TaskScores(task, 8, "3.0", (metric,))}, conditions)


def report(n: int = 40, scale: float = 1.1, **options: Any) -> EvaluationReport:
    base, edited = [1.0, 0.0] * (n // 2) + [0.0] * (n % 2), [1.0] * n
    return EvaluationReport(run(base, **options), run(edited, **options), scale, run(base, **options))


def data_of(card: str) -> Any:
    return ModelCard(card).data


def test_a_card_says_what_was_done_and_measured():
    card = render_card(adapter(), [report(), report(scale=0.0)], name="team/base-math", base_card=BASE_CARD)
    data = data_of(card)
    assert (data.base_model, data.base_model_relation, data.library_name) == ("org/base", "adapter", "mathneuro-hub")
    assert (data.license, data.license_name) == ("other", "base-terms")
    assert data.license_link.endswith(f"/org/base/blob/{COMMIT}/LICENSE.md")
    assert (data.datasets, data.pipeline_tag) == (["openai/gsm8k"], "text-generation")
    assert data.model_name == "base-math"
    (result,) = data.eval_results  # that of scale 0 is not a result of this repo
    assert isinstance(result, EvalResult)
    assert (result.dataset_type, result.dataset_config, result.dataset_split) == ("openai/gsm8k", "main", "test")
    assert (result.metric_value, result.metric_args["base"]) == (1.0, 0.5)
    for said in (
        'NeurosurgeryModel.from_pretrained("team/base-math")',
        f"`{COMMIT}`",
        "4 weights: 25.000 % of the 16 covered, 4.000 % of the 100 in the model",
        "| gsm8k_cot | 40 | acc, strict-match | 8 | 0.500 ± 0.080 | 1.000 ± 0.000 | +0.500 [",
        "higher by 0.500",
        "random mask of the same size",
        "within noise",
        "bfloat16 on cuda \\(acc\\)",
        "lm_eval `0.4.13`",
        "2410.16930",
    ):
        assert said in card, said
    baked = data_of(render_card(adapter(), [], name="team/edited", baked=True))
    assert (baked.base_model_relation, baked.library_name, baked.eval_results) == ("finetune", "transformers", None)


@pytest.mark.parametrize("base", ["/home/me/model", "demo", "model", "../up/model", "C:\\models\\x"])
def test_a_base_that_is_not_on_the_hub_is_not_named_to_it(base):
    data = data_of(render_card(adapter(base, revision=None), [], name="math", base_card=BASE_CARD))
    assert (data.get("base_model"), data.get("base_model_relation")) == (None, None)
    assert (data.license, data.get("license_link")) == ("other", None)
    assert data_of(render_card(adapter(hub_id="/home/me/data.csv"), [], name="math")).get("datasets") is None


def test_leaderboards_get_whole_test_sets_of_tasks_they_know():
    whole = report(1319)
    files = leaderboard_entries(adapter().config, [whole, report(1319, scale=0.0)])
    (entry,) = parse_eval_result_entries(yaml.safe_load(files["mathneuro-gsm8k.yaml"]))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("openai/gsm8k", "gsm8k", 100.0)
    assert entry.notes == "lm-eval gsm8k_cot, 8-shot, strict-match"
    assert list(files) == ["mathneuro-gsm8k.yaml"]
    for partial in (report(1318), report(1319, limit=1319), report(1319, task="race"), report(1319, scale=0.0)):
        assert leaderboard_entries(adapter().config, [partial]) == {}


def test_a_folder_has_the_card_s_figure_and_entries(tmp_path):
    for name in ("a", "b"):
        save_adapter(adapter(), tmp_path / name, results=[report(1319)], base_card=BASE_CARD)
    files = {
        path.relative_to(tmp_path / "a"): path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    assert {str(path) for path in files} >= {"README.md", "edited_weights.png", ".eval_results/mathneuro-gsm8k.yaml"}
    assert b"(edited_weights.png)" in (tmp_path / "a/README.md").read_bytes()
    for path in ("edited_weights.png", "eval_results.json"):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


HOSTILE = st.one_of(
    st.text(st.sampled_from("`*_[]()<>!|#\n\r\t~$&\\'\":{}%- =+.,;@/0aZé\u2028\x00\x85"), min_size=1, max_size=24),
    st.sampled_from(
        [
            "a\n---\nlicense: mit\n---\n",
            "\n```\n# out\n",
            "</details><script>alert(1)</script>",
            f"{END}\n# out",
            f"{BEGIN}",
            "x | y\\| z\\\\| |",
            "](http://evil.example) ![x](y)",
            "{{ config }}{% raw %}",
            "$(rm -rf /)'\"; rm -rf /",
            "``` `` `",
            "\\",
            "- a\n- b\n\n1. c",
        ]
    ),
)


def shape(card: str) -> list[tuple[str, str]]:
    """What a reader sees the card made of: headings, tables with their cells, lists, code blocks, links and images."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
    found = []
    for token in parser.parse(split(card)[1]):
        found.append((token.type, token.tag))
        found += [
            (child.type, child.tag) for child in token.children or () if child.type not in {"text", "text_special"}
        ]
    return found


@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(name=HOSTILE, base=HOSTILE, data=HOSTILE, kind=HOSTILE, text=HOSTILE, baked=st.booleans())
def test_names_cannot_break_out(name, base, data, kind, text, baked):
    def card(*words: str) -> str:
        name, base, data, kind, text = words
        made = adapter(
            base, None, data=data, hub_id=None if is_hub_id(data) else data, kind=kind.replace(".", "_"), text=text
        )
        return render_card(made, [report(task=data, text=text)], name=name, baked=baked, with_adapter=baked)

    hostile, plain = card(name, base, data, kind, text), card("name", "base", "data", "kind", "text")
    assert shape(hostile) == shape(plain)
    metadata, _ = split(hostile)
    assert metadata.keys() == split(plain)[0].keys()
    assert "base_model" not in metadata
    check_metadata(hostile)
    index = metadata["model-index"][0]
    assert (index["name"], index["results"][0]["dataset"]["name"]) == (name.rpartition("/")[2], data)
    # Our part is where it was: publishing again changes nothing.
    assert amend(hostile, hostile, {}, name=name.rpartition("/")[2]) == hostile
    code = hostile.split("```bash\n")[1].split("\n```")[0]
    assert "\n" not in code
    if all(word.isprintable() for word in (base, data, text)):
        words = shlex.split(code)
        assert words[words.index("--model") + 1] == base
        assert words[words.index("--skill") + 1] == data
    python = hostile.split("```python\n")[1].split("\n```")[0]
    compile(python, "card", "exec")


OURS = render_card(adapter(), [report()], name="team/math")


def test_a_person_s_card_is_kept_and_ours_put_below_it():
    theirs = (
        "---\nlicense: mit\nlanguage: no\ndate: 2026-01-02\ntags: [mine]\nlicense_name: x\n---\n\n# Mine\n\nText.\n"
    )
    card = amend(theirs, OURS, {}, "math")
    data, text = split(card)
    assert text.strip().startswith("# Mine\n\nText.\n\n<!-- mathneuro:begin -->")
    assert (data["license"], data["language"], str(data["date"]), data["license_name"]) == (
        "mit",
        "no",
        "2026-01-02",
        "x",
    )
    assert data["tags"][0] == "mine"
    assert {"mathneuro", "math-neurosurgery"} <= set(data["tags"])
    assert (data["base_model"], data["library_name"]) == ("org/base", "mathneuro-hub")
    newer = render_card(adapter(scale=0.0, hub_id="cais/mmlu"), [], name="team/math")
    again = amend(card, newer, {"datasets": ["openai/gsm8k"], "tags": ["mathneuro"]}, "math")
    data, text = split(again)
    assert "recommended scale of 0" in text
    assert "recommended scale of 1.1" not in text
    assert data["datasets"] == ["cais/mmlu"]
    assert "model-index" not in data
    assert data["tags"][0] == "mine"
    assert amend("Only words.", OURS, {}, "math").endswith(f"Only words.\n\n{split(OURS)[1].strip()}\n")


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60).map(str.strip),
    keys=st.dictionaries(
        st.from_regex(r"my_[a-z]{1,6}", fullmatch=True), st.text(max_size=12) | st.integers(), max_size=4
    ),
)
def test_what_a_person_wrote_survives(text, keys):
    once = amend(join({"title": "x", **keys}, text), OURS, {}, "math")
    twice = amend(once, OURS, {}, "math")
    assert once == twice
    data, body = split(once)
    assert data.items() >= keys.items()
    assert body.strip().startswith(text)


def test_metadata_that_the_hub_would_refuse():
    for bad, message in {
        "base_model: /home/me/model": "no Hub id of a model",
        "datasets: [good/one, 'not good']": "no Hub id of a data set",
        "license_name: 3": "make it text",
        "a: [": "no valid YAML",
        "- a": "no mapping",
    }.items():
        with pytest.raises(HubError, match=message):
            check_metadata(f"---\n{bad}\n---\ntext")
