"""Real lm-eval runs of a pico model, offline: on the demo's tasks and on folders of tasks made here."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mathneuro_hub.demo.train import build_tokenizer
from mathneuro_hub.errors import EvaluationError, FormatError, SettingError
from mathneuro_hub.evaluation import EvaluationRun, compare
from mathneuro_hub.evaluation.harness import evaluate

DEMO_TASKS = Path(__file__).parents[1] / "mathneuro_hub" / "demo" / "tasks"
DEMO_NAMES = ["demo_math", "demo_capitals", "demo_grammar"]
GENERATE = {
    "output_type": "generate_until",
    "doc_to_text": "prompt",
    "doc_to_target": "answer",
    "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHOOSE = {
    "output_type": "multiple_choice",
    "doc_to_text": "prompt",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
TaskMaker = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> TaskMaker:
    """Writes a task of one's own: YAML, questions beside it, and the loader."""

    def make(name: str, rows: list[dict[str, Any]], kind: dict[str, Any], **fields: Any) -> Path:
        tasks = tmp_path / "own tasks"
        tasks.mkdir(exist_ok=True)
        (tasks / "utils.py").write_text((DEMO_TASKS / "utils.py").read_text())
        (tasks / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {"task": name, "dataset_kwargs": {"file": f"{name}.jsonl"}, "test_split": "test"} | kind | fields
        (tasks / f"{name}.yaml").write_text("custom_dataset: !function utils.load\n" + yaml.safe_dump(config))
        return tasks

    return make


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{10 + i} + {20 + i} =", "answer": str(30 + 2 * i)} for i in range(count)]


def choices(count: int) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (DEMO_TASKS / "grammar.jsonl").read_text().splitlines()]
    return rows[:count]


def state(model: LlamaForCausalLM) -> dict[str, tuple[int, bytes]]:
    return {name: (p.data_ptr(), p.detach().numpy().tobytes()) for name, p in model.named_parameters()}


@torch.no_grad()
def greedy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, tokens: int = 4) -> str:
    """Plain greedy decoding of one prompt without cache or padding, cut at the first newline or end token."""
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=True).split("\n")[0]


@torch.no_grad()
def most_likely(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, row: dict[str, Any]) -> str:
    """The choice with the highest summed log-probability, one forward pass each."""
    prompt = tokenizer(row["prompt"])["input_ids"]

    def log_likelihood(choice: str) -> float:
        ids = tokenizer(f"{row['prompt']} {choice}")["input_ids"]
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(logs[i - 1, ids[i]]) for i in range(len(prompt), len(ids)))

    return max(row["choices"], key=log_likelihood)


def test_demo_tasks_are_complete_and_leave_nothing_behind(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO):
        run = evaluate(
            model,
            tokenizer,
            DEMO_NAMES,
            include_path=DEMO_TASKS,
            batch_size=64,
            on_progress=lambda done, total: told.append((done, total)),
        )
    assert list(run.tasks) == DEMO_NAMES
    for name, metric in zip(DEMO_NAMES, ["exact_match", "exact_match", "acc"], strict=True):
        task = run.tasks[name]
        questions = (DEMO_TASKS / f"{name.removeprefix('demo_')}.jsonl").read_text().splitlines()
        assert task.primary.n == len(questions)
        assert task.primary.binary
        assert (task.primary.metric, task.shots, task.version, task.truncated) == (metric, 0, "1", 0)
    assert sorted(told) == told
    assert told[-1] == (520, 520)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not list(tmp_path.iterdir())
    assert not (Path(os.environ["HF_HOME"]) / "datasets").exists()


def test_multiple_choice_equals_one_plain_forward_pass_per_choice(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    run = evaluate(model, tokenizer, ["demo_grammar"], include_path=DEMO_TASKS, batch_size=7, limit=40)
    expected = [float(most_likely(model, tokenizer, row) == row["answer"]) for row in choices(40)]
    assert 0 < sum(expected) < 40
    assert list(run.tasks["demo_grammar"].primary.values.values()) == expected


def test_generation_equals_plain_greedy_decoding(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    rows = sums(20)
    for row in rows[::2]:
        row["answer"] = greedy(model, tokenizer, row["prompt"])
    assert len({row["answer"] for row in rows[::2]}) > 1
    run = evaluate(model, tokenizer, ["own"], include_path=folder("own", rows, GENERATE), batch_size=8)
    assert list(run.tasks["own"].primary.values.values()) == [1.0, 0.0] * 10


def test_the_same_model_edited_in_place_is_scored_anew_and_then_as_before(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    def once(label: str) -> EvaluationRun:
        return evaluate(model, tokenizer, ["demo_grammar"], include_path=DEMO_TASKS, limit=60, label=label)

    base = once("base")
    kept = model.model.layers[0].mlp.down_proj.weight.detach().clone()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.zero_()
    edited = once("edited")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.copy_(kept)
    assert once("base").tasks["demo_grammar"].metrics == base.tasks["demo_grammar"].metrics
    (found,) = compare(base, edited)
    assert found.gained + found.lost > 0
    assert found.difference == pytest.approx(edited.scores["demo_grammar"].primary.score - found.base)


def test_a_task_scores_the_same_alone_and_in_company(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    folder("short", choices(9), CHOOSE)
    tasks = folder("long", [row | {"prompt": "The king is. " * 5 + row["prompt"]} for row in choices(5)], CHOOSE)
    alone = evaluate(model, tokenizer, ["short"], include_path=tasks)
    together = evaluate(model, tokenizer, ["long", "short"], include_path=tasks)
    assert together.tasks["short"].metrics == alone.tasks["short"].metrics


@pytest.mark.parametrize("training", [True, False])
def test_model_tokenizer_and_generators_are_left_as_they_were(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, training: bool
) -> None:
    bare = build_tokenizer()
    bare.pad_token = None
    model.train(training)
    before = state(model)

    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    evaluate(model, bare, ["demo_math"], include_path=DEMO_TASKS, limit=3)
    assert draws() == expected
    assert state(model) == before
    assert model.training is training
    assert bare.pad_token is None
    assert len(bare) == len(tokenizer)


def test_both_filters_are_kept_and_the_first_is_the_primary_one(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    filters = [
        {
            "name": "strict-match",
            "filter": [{"function": "regex", "regex_pattern": "never (x)"}, {"function": "take_first"}],
        },
        {"name": "flexible-extract", "filter": [{"function": "take_first"}]},
    ]
    rows = [row | {"answer": greedy(model, tokenizer, row["prompt"])} for row in sums(4)]
    run = evaluate(model, tokenizer, ["own"], include_path=folder("own", rows, GENERATE, filter_list=filters))
    strict, flexible = run.tasks["own"].metrics
    assert (strict.filter, strict.score) == ("strict-match", 0)
    assert (flexible.filter, flexible.score) == ("flexible-extract", 1)
    assert strict.values.keys() == flexible.values.keys()
    assert run.tasks["own"].primary is strict
    assert run.tasks["own"].metric("exact_match", "flexible-extract") is flexible
    with pytest.raises(EvaluationError, match="it reports exact_match,strict-match"):
        run.tasks["own"].metric("acc", "none")


def test_a_group_pools_the_questions_of_its_tasks(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    rows = choices(8)
    folder("first", rows[:6], CHOOSE)
    tasks = folder("second", rows[5:], CHOOSE)  # one question in both
    (tasks / "both.yaml").write_text("group: both\ntask: [first, second]\n")
    run = evaluate(model, tokenizer, ["both"], include_path=tasks)
    assert list(run.tasks) == ["first", "second"]
    pooled = run.scores["both"].primary
    assert pooled.n == 9
    assert sum(pooled.values.values()) == sum(sum(t.primary.values.values()) for t in run.tasks.values())
    assert [c.task for c in compare(run, run)] == ["both", "first", "second"]


def test_a_question_asked_twice_counts_twice(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    run = evaluate(model, tokenizer, ["own"], include_path=folder("own", choices(3) * 2, CHOOSE))
    assert run.tasks["own"].primary.n == 6


def test_worked_examples_follow_the_seed_and_belong_to_the_question(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    tasks = folder("own", sums(12), GENERATE)

    def once(**options: Any) -> EvaluationRun:
        return evaluate(model, tokenizer, ["own"], include_path=tasks, limit=5, **options)

    bare, two, again, other = once(), once(num_fewshot=2), once(num_fewshot=2), once(num_fewshot=2, seed=1)
    assert (bare.tasks["own"].shots, two.tasks["own"].shots) == (0, 2)
    assert two.tasks["own"].metrics == again.tasks["own"].metrics
    for run in (bare, other):
        with pytest.raises(EvaluationError, match="questions are in only one"):
            compare(two, run)


def test_worked_examples_are_not_forced_on_a_task_that_fixes_none(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    run = evaluate(model, tokenizer, ["demo_math"], include_path=DEMO_TASKS, limit=2, num_fewshot=3)
    assert run.tasks["demo_math"].shots == 0


def test_chat_template_is_applied_and_recorded(model: LlamaForCausalLM, folder: TaskMaker) -> None:
    tokenizer = build_tokenizer()
    tasks = folder("own", choices(4), CHOOSE)
    with pytest.raises(SettingError, match="no chat template"):
        evaluate(model, tokenizer, ["own"], include_path=tasks, apply_chat_template=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    plain = evaluate(model, tokenizer, ["own"], include_path=tasks)
    chat = evaluate(model, tokenizer, ["own"], include_path=tasks, apply_chat_template=True)
    assert chat.settings.apply_chat_template
    assert not plain.tasks["own"].primary.values.keys() & chat.tasks["own"].primary.values.keys()


@pytest.mark.parametrize(("kind", "cut"), [(GENERATE, 2), (CHOOSE, 8)])
def test_prompts_beyond_the_context_are_counted(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker, kind: dict[str, Any], cut: int
) -> None:
    rows = choices(5)
    for row in rows[:2]:
        row["prompt"] = "the king " * 40 + row["prompt"]
    run = evaluate(model, tokenizer, ["own"], include_path=folder("own", rows, kind), batch_size=5)
    assert run.tasks["own"].truncated == cut
    assert run.settings.max_length == 64


def test_metrics_without_a_value_per_question_are_named_not_compared(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    metrics = CHOOSE["metric_list"] + [
        {"metric": "brier_score", "higher_is_better": False, "aggregation": "brier_score"}
    ]
    rows = [row | {"answer": row["choices"].index(row["answer"])} for row in choices(6)]
    run = evaluate(model, tokenizer, ["own"], include_path=folder("own", rows, CHOOSE, metric_list=metrics))
    assert run.tasks["own"].left_out == ("brier_score,none",)
    assert [m.metric for m in run.tasks["own"].metrics] == ["acc"]


def test_a_task_that_is_only_perplexity_is_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    kind = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "prompt",
        "metric_list": [{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}],
    }
    with pytest.raises(EvaluationError, match=r"only word_perplexity,none, which is no mean"):
        evaluate(model, tokenizer, ["own"], include_path=folder("own", sums(3), kind))


def test_own_tasks_win_over_those_of_lm_eval(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    run = evaluate(model, tokenizer, ["gsm8k"], include_path=folder("gsm8k", sums(3), GENERATE))
    assert run.tasks["gsm8k"].primary.n == 3


def test_unknown_and_unreachable_tasks(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(EvaluationError, match=r"no task 'gsm8k_cott' in lm-eval; did you mean gsm8k_cot "):
        evaluate(model, tokenizer, ["gsm8k_cott"])
    with pytest.raises(EvaluationError, match=r"no task '%%' in lm-eval; `lm-eval ls tasks`"):
        evaluate(model, tokenizer, ["%%"])
    with pytest.raises(EvaluationError, match="gsm8k is not in the local cache and the Hub cannot be reached"):
        evaluate(model, tokenizer, ["gsm8k"])


def test_nothing_a_model_writes_is_executed(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker
) -> None:
    with pytest.raises(EvaluationError, match="executes what the model writes"):
        evaluate(model, tokenizer, ["own"], include_path=folder("own", sums(3), GENERATE, unsafe_code=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset_kwargs": {"file": "gone.jsonl"}}, "Task own cannot be loaded: .*gone.jsonl"),
        ({"test_split": "validation"}, "Task own cannot be loaded: 'validation'"),
        ({"doc_to_text": "{{ nothing.at.all }}"}, "Task own cannot be loaded: 'nothing' is undefined"),
        ({"generation_kwargs": {"until": ["\n"], "max_gen_toks": 64}}, "Task own failed while running"),
    ],
)
def test_broken_tasks_are_named(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: TaskMaker,
    fields: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate(model, tokenizer, ["own"], include_path=folder("own", sums(3), GENERATE, **fields))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": "auto"},
        {"batch_size": 0},
        {"limit": 0},
        {"limit": 0.5},
        {"num_fewshot": -1},
        {"seed": -1},
        {"tasks": []},
        {"tasks": "demo_math"},
        {"include_path": Path("nowhere")},
    ],
)
def test_settings_out_of_range(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, options: dict[str, Any]
) -> None:
    with pytest.raises(SettingError):
        evaluate(model, tokenizer, **({"tasks": DEMO_NAMES, "include_path": DEMO_TASKS} | options))


def test_a_run_survives_json_and_names_no_folder_of_this_machine(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: TaskMaker, tmp_path: Path
) -> None:
    model.config._name_or_path = str(tmp_path)
    folder("first", choices(2), CHOOSE)
    tasks = folder("second", sums(2), GENERATE)
    run = evaluate(model, tokenizer, ["first", "second"], include_path=tasks, limit=2, label="pruned")
    text = json.dumps(run.to_dict())
    assert EvaluationRun.from_dict(json.loads(text)) == run
    assert str(tmp_path.parent) not in text
    assert (run.settings.model, run.settings.include_path) == (tmp_path.name, "own tasks")
    assert (run.settings.dtype, run.settings.device) == ("float32", "cpu")
    assert run.settings.versions.keys() >= {"lm_eval", "torch", "transformers", "mathneuro-hub"}


@pytest.mark.parametrize(
    ("stored", "recorded"),
    [("/no/such/folder/base", "base"), ("./base", "base"), (r"C:\models\base", "base"), ("org/base", "org/base")],
)
def test_the_model_is_recorded_by_name_not_by_path(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, stored: str, recorded: str
) -> None:
    model.config._name_or_path = stored
    run = evaluate(model, tokenizer, ["demo_math"], include_path=DEMO_TASKS, limit=1)
    assert run.settings.model == recorded
    given = evaluate(model, tokenizer, ["demo_math"], include_path=DEMO_TASKS, limit=1, model_name="org/other")
    assert given.settings.model == "org/other"


def test_damaged_results_are_refused(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    record = evaluate(model, tokenizer, ["demo_math"], include_path=DEMO_TASKS, limit=2).to_dict()
    for name in record:
        with pytest.raises(FormatError):
            EvaluationRun.from_dict({key: value for key, value in record.items() if key != name})
    with pytest.raises(FormatError, match="update mathneuro-hub"):
        EvaluationRun.from_dict(record | {"format_version": 2})
    for broken in ([], {"demo_math": {}}, {"demo_math": record["tasks"]["demo_math"] | {"metrics": []}}):
        with pytest.raises(FormatError):
            EvaluationRun.from_dict(record | {"tasks": broken})


def test_bf16_is_scored_in_bf16(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    model = model.to(torch.bfloat16)
    run = evaluate(model, tokenizer, ["demo_grammar"], include_path=DEMO_TASKS, limit=10)
    assert run.settings.dtype == "bfloat16"
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
