"""Card metadata: what the Hub refuses in it, and the tags it makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from .repo import Commit, Kind

LICENSES = frozenset(
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 "
    "grok2-community h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 "
    "llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 "
    "other pddl postgresql unknown unlicense wtfpl zlib".split()
)
RELATIONS = ("adapter", "finetune", "merge", "quantized")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?|code|multilingual")
_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def metadata(card: str) -> dict[str, Any]:
    """The front matter of a card; empty without one.

    Raises:
        ValueError: it is not YAML, or not a mapping.
    """
    found = _FRONT_MATTER.match(card)
    try:
        parsed = (yaml.safe_load(found.group(1)) if found else None) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"YAML error: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError("The metadata must be a mapping")
    return parsed


def errors(card: str) -> list[str]:
    """Why the Hub would not take a card; empty when it would."""
    try:
        data = metadata(card)
    except ValueError as error:
        return [str(error)]
    return [*_field_errors(data), *_evaluation_errors(data.get("model-index"))]


def warnings(card: str) -> list[str]:
    """What the Hub would like to see in a card that it takes."""
    return [] if metadata(card) else ["empty or missing yaml metadata in repo card"]


def card_data(commit: Commit) -> dict[str, Any]:
    """The metadata of a commit's ``README.md``; empty when there is none or it does not parse."""
    readme = commit.files.get("README.md")
    try:
        return metadata(readme.data.decode(errors="replace")) if readme else {}
    except ValueError:
        return {}


def tags(kind: Kind, commit: Commit) -> list[str]:
    """The tags that searches filter by, as the Hub derives them from the card.

    A base model gives two: ``base_model:ID`` and ``base_model:RELATION:ID``; without ``base_model_relation`` the relation is
    ``adapter`` for what PEFT wrote and ``finetune`` for the rest.
    """
    data = card_data(commit)
    peft = "adapter_config.json" in commit.files or data.get("library_name") == "peft"
    relation = data.get("base_model_relation", "adapter" if peft else "finetune")
    found = [data["library_name"]] if "library_name" in data else []
    found += [data["pipeline_tag"]] if "pipeline_tag" in data else []
    found += _listed(data.get("tags")) + _listed(data.get("language"))
    for base in _listed(data.get("base_model")) if kind == "model" else []:
        found += [f"base_model:{base}", f"base_model:{relation}:{base}"]
    found += [f"dataset:{name}" for name in _listed(data.get("datasets"))]
    found += [f"license:{name}" for name in _listed(data.get("license"))]
    return list(dict.fromkeys([*found, "region:us"]))


def _field_errors(data: dict[str, Any]) -> Iterator[str]:
    for field, what in (("base_model", "model id"), ("datasets", "dataset id")):
        for position, value in enumerate(_listed(data.get(field))):
            if not isinstance(value, str) or not _HUB_ID.fullmatch(value):
                place = f"{field}[{position}]" if isinstance(data[field], list) else field
                yield f'"{place}" with value "{value}" is not valid. It should be a {what} from the Hub.'
    if data.get("base_model_relation", RELATIONS[0]) not in RELATIONS:
        yield f'"base_model_relation" must be one of {list(RELATIONS)}'
    for value in _listed(data.get("license")):
        if value not in LICENSES:
            yield f'"license" must be one of the identifiers the Hub knows, not "{value}"'
    for value in _listed(data.get("language")):
        if not isinstance(value, str) or not _LANGUAGE.fullmatch(value):
            yield f'"language" must only contain ISO 639 codes, not "{value}"'
    for field in ("tags", "library_name", "pipeline_tag", "license_name", "license_link"):
        if not all(isinstance(value, str) for value in _listed(data.get(field))):
            yield f'"{field}" must be a string' if field != "tags" else '"tags" must be an array of strings'


def _evaluation_errors(index: Any) -> Iterator[str]:
    """The shape of ``model-index``: models, their results, and task, dataset and metrics of each."""
    if index is None:
        return
    if not isinstance(index, list) or not all(isinstance(model, dict) for model in index):
        yield '"model-index" must be an array of objects'
        return
    for place, model in ((f"model-index[{position}]", model) for position, model in enumerate(index)):
        if not isinstance(model.get("name"), str):
            yield f'"{place}.name" is required'
        results = model.get("results")
        if not isinstance(results, list):
            yield f'"{place}.results" is required'
            continue
        for position, result in enumerate(results):
            yield from _result_errors(result, f"{place}.results[{position}]")


def _result_errors(result: Any, place: str) -> Iterator[str]:
    if not isinstance(result, dict):
        yield f'"{place}" must be an object'
        return
    for part, required in (("task", ("type",)), ("dataset", ("type", "name"))):
        described = result.get(part)
        for name in required:
            if not isinstance(described, dict) or not isinstance(described.get(name), str):
                yield f'"{place}.{part}.{name}" is required'
    metrics = result.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        yield f'"{place}.metrics" is required'
        return
    for position, metric in enumerate(metrics):
        if not isinstance(metric, dict) or "type" not in metric or "value" not in metric:
            yield f'"{place}.metrics[{position}]" needs a type and a value'


def _listed(value: Any) -> list[Any]:
    """One or several, as the Hub allows both."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
