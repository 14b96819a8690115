"""A card that is there already: our part is between two markers, and everything else is a person's and stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mathneuro_hub.errors import HubError
from mathneuro_hub.publishing.metadata import LIBRARY, join, split

BEGIN, END = "<!-- mathneuro:begin -->", "<!-- mathneuro:end -->"

_LISTS = ("tags", "datasets")


def amend(existing: str, ours: str, outdated: Mapping[str, Sequence[str]], name: str) -> str:
    """``existing`` with our part in it brought up to date, or put at its end where there is none.

    Of the metadata, a person's keys stay as they are; what says which base this is and what was measured is ours; lists
    of tags and data sets are united.

    Args:
        existing: the card in the repo.
        ours: the card that we would write into an empty repo.
        outdated: entries of the lists that an earlier version of ours put there.
        name: under which our evaluation results stand in ``existing``.

    Raises:
        HubError: the metadata of ``existing`` is no valid YAML.
    """
    try:
        theirs, text = split(existing)
    except ValueError as error:
        raise HubError(
            f"The card that is there has metadata that is no valid YAML ({error}); correct its front matter first."
        ) from error
    data, body = split(ours)
    begin, end = text.find(BEGIN), text.rfind(END)
    if 0 <= begin < end:
        text = text[:begin] + body.strip() + text[end + len(END) :]
        theirs["model-index"] = [entry for entry in _listed(theirs.get("model-index")) if _name(entry) != name]
    else:
        text = f"{text.strip()}\n\n{body.strip()}"
    return join(_merged(theirs, data, outdated), text)


def _merged(theirs: dict[str, Any], ours: dict[str, Any], outdated: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    merged = {**theirs, **{key: value for key, value in ours.items() if key not in theirs}}
    if "base_model" in ours:
        merged["base_model_relation"] = ours["base_model_relation"]
        if ours["base_model"] not in _listed(theirs.get("base_model")):
            merged["base_model"] = ours["base_model"]
    if theirs.get("library_name") in (LIBRARY, "transformers"):
        merged["library_name"] = ours["library_name"]
    for key in (*_LISTS, "model-index"):
        kept = [entry for entry in _listed(theirs.get(key)) if entry not in outdated.get(key, ())]
        merged[key] = kept + [entry for entry in ours.get(key, []) if entry not in kept]
        if not merged[key]:
            del merged[key]
    return merged


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _name(entry: Any) -> object:
    return entry.get("name") if isinstance(entry, dict) else None
