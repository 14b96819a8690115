"""The YAML of a card: what the Hub indexes, made from the adapter's own record and checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]
from huggingface_hub import EvalResult, ModelCardData

from mathneuro_hub.adapter.config import NeurosurgeryConfig
from mathneuro_hub.errors import HubError
from mathneuro_hub.evaluation.report import EvaluationReport
from mathneuro_hub.remote import endpoint

LIBRARY = "mathneuro-hub"
TAG = "mathneuro"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """YAML 1.2's idea of truth: ``language: no`` is Norwegian."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - read by the base class, never changed
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), list("tf"))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
    """Escapes what PyYAML's plainer styles lose, such as a line break that is not ``\\n``."""

    def represent_text(self, text: str) -> Any:
        odd = not text.replace("\n", "").isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if odd else None)


_Dumper.add_representer(str, _Dumper.represent_text)


@dataclass(frozen=True)
class Benchmark:
    """A test set that lm-eval and the Hub both know.

    Attributes:
        dataset: its Hub id, and config and split as lm-eval reads them.
        leaderboard: the Hub's task id in ``.eval_results`` (https://huggingface.co/docs/hub/eval-results), if the data set
            keeps a leaderboard; taken from entries that are on the Hub.
        questions: how many the whole test set has; 0 without a leaderboard.
    """

    dataset: str
    config: str
    split: str
    leaderboard: str | None = None
    questions: int = 0


_GSM8K = Benchmark("openai/gsm8k", "main", "test", "gsm8k", 1319)
BENCHMARKS = {
    "gsm8k": _GSM8K,
    "gsm8k_cot": _GSM8K,
    "gsm8k_cot_zeroshot": _GSM8K,
    "mmlu": Benchmark("cais/mmlu", "all", "test"),
    "mmlu_pro": Benchmark("TIGER-Lab/MMLU-Pro", "default", "test", "mmlu_pro", 12032),
    "race": Benchmark("EleutherAI/race", "high", "test"),
}
"""lm-eval task -> test set."""


def is_hub_id(name: object) -> bool:
    """Whether ``name`` has the form ``owner/name``."""
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None


def has_hub_base(config: NeurosurgeryConfig) -> bool:
    """Only a base that was fetched from the Hub has a commit; a local path must not reach ``base_model``."""
    return config.revision is not None and is_hub_id(config.base_model_name_or_path)


def data_sets(config: NeurosurgeryConfig) -> list[dict[str, Any]]:
    """Every data set of the adapter with its role."""
    parts = config.data.get("combined") or [{"data": config.data}]
    found = []
    for part in parts:
        data = part["data"]
        if data.get("skill"):
            found.append({"role": "skill", **data["skill"]})
        found += [{"role": "contrast", **contrast} for contrast in data.get("contrasts", [])]
    return found


def own_lists(config: NeurosurgeryConfig) -> dict[str, list[str]]:
    """The lists in the metadata to which a person may add: ``tags``, and ``datasets`` with Hub ids only."""
    ids = sorted({entry["hub_id"] for entry in data_sets(config) if is_hub_id(entry.get("hub_id"))})
    return {"tags": [TAG, "math-neurosurgery", config.method], "datasets": ids}


def metadata(
    config: NeurosurgeryConfig,
    results: Sequence[EvaluationReport],
    *,
    baked: bool,
    name: str,
    base_card: str | None,
) -> dict[str, Any]:
    """The front matter of a card.

    Args:
        config: the adapter's.
        results: of these, only what was measured at the recommended scale is a result of this repo.
        baked: a whole checkpoint, not an adapter.
        name: the model's name in the evaluation results.
        base_card: text of the base's card, whose licence is inherited.
    """
    base = {}
    if has_hub_base(config):
        relation = "finetune" if baked else "adapter"
        base = {"base_model": config.base_model_name_or_path, "base_model_relation": relation}
    lists = own_lists(config)
    found = list(_results(config, results))
    data = ModelCardData(
        library_name="transformers" if baked else LIBRARY,
        pipeline_tag="text-generation",
        tags=lists["tags"],
        datasets=lists["datasets"] or None,
        eval_results=found or None,
        model_name=name if found else None,
    )
    return {**base, **_licence(config, base_card), **data.to_dict()}  # type: ignore[no-untyped-call]


def _licence(config: NeurosurgeryConfig, base_card: str | None) -> dict[str, Any]:
    """``license``, ``license_name`` and ``license_link`` of the base; a link into the base's repo made absolute."""
    try:
        base = front_matter(base_card or "")
    except ValueError:
        return {}
    found = {key: base[key] for key in ("license", "license_name", "license_link") if isinstance(base.get(key), str)}
    link = found.get("license_link")
    if link is not None and not link.startswith(("https://", "http://")):
        if not has_hub_base(config):
            del found["license_link"]
        else:
            page = f"{endpoint()}/{config.base_model_name_or_path}/blob/{config.revision}"
            found["license_link"] = f"{page}/{link.removeprefix('./')}"
    return found


def _results(config: NeurosurgeryConfig, results: Sequence[EvaluationReport]) -> Iterator[EvalResult]:
    for report in results:
        if report.edited is None or report.scale != config.scale:
            continue
        for comparison in report.comparisons:
            known = BENCHMARKS.get(comparison.task)
            limit = report.edited.settings.limit
            yield EvalResult(
                task_type="text-generation",
                dataset_type=known.dataset if known else comparison.task,
                dataset_name=comparison.task,
                dataset_config=known.config if known else None,
                dataset_split=known.split if known else None,
                dataset_args={"first_questions": limit} if limit else None,
                metric_type=comparison.metric,
                metric_name=f"{comparison.metric} ({comparison.filter})",
                metric_value=round(comparison.edited, 4),
                metric_args={
                    "filter": comparison.filter,
                    "num_fewshot": report.edited.scores[comparison.task].shots,
                    "questions": comparison.n,
                    "stderr": None if comparison.edited_stderr is None else round(comparison.edited_stderr, 4),
                    "base": round(comparison.base, 4),
                },
            )


def leaderboard_entries(config: NeurosurgeryConfig, results: Sequence[EvaluationReport]) -> dict[str, str]:
    """File name -> YAML of the ``.eval_results`` folder: whole test sets of tasks with a leaderboard, and nothing else.

    Values are percentages of the task's primary metric, as the entries on the Hub are.
    """
    files = {}
    for report in results:
        if report.edited is None or report.scale != config.scale or report.edited.settings.limit is not None:
            continue
        for task, scores in report.edited.scores.items():
            known = BENCHMARKS.get(task)
            score = scores.primary
            if known is None or known.leaderboard is None or score.n != known.questions:
                continue
            shots = "" if scores.shots is None else f"{scores.shots}-shot, "
            entry = {
                "dataset": {"id": known.dataset, "task_id": known.leaderboard},
                "value": round(100 * score.score, 2),
                "notes": f"lm-eval {task}, {shots}{score.filter}",
            }
            files[f"{TAG}-{known.leaderboard}.yaml"] = yaml.safe_dump([entry], sort_keys=False)
    return files


def front_matter(card: str) -> dict[str, Any]:
    """The metadata of a card; empty without any.

    Raises:
        ValueError: it is no YAML mapping.
    """
    found = _FRONT_MATTER.match(card)
    try:
        parsed = (yaml.load(found.group(1), _Loader) if found else None) or {}  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(parsed, dict):
        raise ValueError("it is no mapping")
    return parsed


def split(card: str) -> tuple[dict[str, Any], str]:
    """A card's metadata and the text below it.

    Raises:
        ValueError: the metadata is no YAML mapping.
    """
    return front_matter(card), _FRONT_MATTER.sub("", card, count=1)


def join(data: Mapping[str, Any], text: str) -> str:
    """A card of metadata and text."""
    front = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True).strip()
    return f"---\n{front}\n---\n\n{text.strip()}\n"


def check_metadata(card: str) -> None:
    """Refuse metadata that the Hub is known to refuse, without asking it.

    Raises:
        HubError
    """
    try:
        data = front_matter(card)
    except ValueError as error:
        raise HubError(f"The metadata of the card is no valid YAML ({error}); correct its front matter.") from error
    for key, what in (("base_model", "model"), ("datasets", "data set")):
        values = data.get(key) or []
        for value in [values] if not isinstance(values, list) else values:
            if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", value):
                raise HubError(f"The card's {key} names {value!r}, which is no Hub id of a {what}; correct it.")
    for key in ("library_name", "license_name", "pipeline_tag"):
        if not isinstance(data.get(key, ""), str):
            raise HubError(f"The card's {key} is {data[key]!r}; make it text.")
