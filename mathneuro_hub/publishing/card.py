"""Model cards: what an adapter or a baked model is, from its own config and its measured results."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, FunctionLoader, StrictUndefined

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import NeurosurgeryConfig
from mathneuro_hub.evaluation.report import RESULTS_FILE, EvaluationReport, save_reports
from mathneuro_hub.files import replacing_folder

CARD_FILE = "README.md"


def save_adapter(
    adapter: NeurosurgeryAdapter,
    folder: Path | str,
    *,
    overwrite: bool = False,
    results: Sequence[EvaluationReport] = (),
) -> None:
    """Write an adapter with its card, and its evaluation results if there are any.

    Raises:
        OutputError: the folder exists and ``overwrite`` is off, or it cannot be written.
    """
    with replacing_folder(Path(folder), overwrite) as aside:
        adapter.write_to(aside)
        if results:
            save_reports(aside / RESULTS_FILE, results)
        card = render_card("adapter.md.jinja", adapter, results, name=Path(folder).resolve().name)
        (aside / CARD_FILE).write_text(card, encoding="utf-8")


def write_baked_card(
    adapter: NeurosurgeryAdapter, scale: float, folder: Path, results: Sequence[EvaluationReport] = ()
) -> None:
    """Write the card of a checkpoint that was baked from ``adapter`` at ``scale``, and the config it came from."""
    baked = adapter.with_scale(scale)
    baked.config.save(folder)
    if results:
        save_reports(folder / RESULTS_FILE, results)
    (folder / CARD_FILE).write_text(render_card("baked.md.jinja", baked, results, name="this model"), encoding="utf-8")


def render_card(template: str, adapter: NeurosurgeryAdapter, results: Sequence[EvaluationReport], *, name: str) -> str:
    """The card as Markdown with its YAML front matter."""
    config = adapter.config
    environment = Environment(
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown, not HTML: values go through the md and code filters
    )
    environment.filters |= {"md": _markdown, "code": _code}
    body = environment.get_template(template).render(
        name=name,
        config=config,
        metadata=_metadata(config, baked=template.startswith("baked")).to_yaml(),
        command=_command(config),
        layers=adapter.masks.by_layer(),
        kinds=adapter.masks.by_kind(),
        sets=_sets(config),
        results=results,
        hub_base=_is_hub_id(config),
    )
    return body.rstrip() + "\n"


def _metadata(config: NeurosurgeryConfig, baked: bool) -> ModelCardData:
    ids = [entry["hub_id"] for entry in _sets(config) if entry.get("hub_id")]
    extra: dict[str, Any] = {}
    if _is_hub_id(config):
        extra = {
            "base_model": config.base_model_name_or_path,
            "base_model_relation": "finetune" if baked else "adapter",
        }
    return ModelCardData(
        library_name="transformers" if baked else "mathneuro-hub",
        pipeline_tag="text-generation",
        tags=["mathneuro", "math-neurosurgery", config.method],
        datasets=sorted(set(ids)) or None,
        **extra,
    )


def _is_hub_id(config: NeurosurgeryConfig) -> bool:
    """Only a base that was fetched from the Hub has a commit; a local path must not reach ``base_model``."""
    return config.revision is not None


def _sets(config: NeurosurgeryConfig) -> list[dict[str, Any]]:
    """Every data set of the adapter with its role."""
    parts = config.data.get("combined") or [{"data": config.data}]
    found = []
    for part in parts:
        data = part["data"]
        if data.get("skill"):
            found.append({"role": "skill", **data["skill"]})
        found += [{"role": "contrast", **contrast} for contrast in data.get("contrasts", [])]
    return found


def _command(config: NeurosurgeryConfig) -> str | None:
    """The command line that makes the adapter again, where one command does."""
    if config.method == "combined":
        return None
    words = ["mathneuro", "surgery", "create", "--model", config.base_model_name_or_path]
    if config.revision:
        words += ["--revision", config.revision]
    for entry in _sets(config):
        words += [f"--{entry['role']}", entry["name"]]
    words += ["--method", config.method]
    for name, value in config.parameters.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    sets = _sets(config)
    if sets:
        words += ["--num-samples", str(sets[0]["samples"])] if len({s["samples"] for s in sets}) == 1 else []
        words += ["--replacement"] if sets[0].get("replacement") else []
        words += ["--chat-template"] if sets[0].get("chat_template") else []
    if config.include_lm_head:
        words.append("--include-lm-head")
    words += ["--scale", f"{config.scale:g}", "-o", "adapter"]
    return shlex.join(words)


def _markdown(value: object) -> str:
    """A value inside Markdown text or a table cell, unable to start markup, a new cell or a new line."""
    text = re.sub(r"\s+", " ", str(value))
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$-])", r"\\\1", text) if not re.fullmatch(r"[\w./:, -]*", text) else text


def _code(value: object) -> str:
    """A value as inline code, unable to end it."""
    text = re.sub(r"\s+", " ", str(value)).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _template(name: str) -> str:
    return resources.files("mathneuro_hub_cards").joinpath(name).read_text(encoding="utf-8")


def python_literal(value: str) -> str:
    """``value`` as a Python string for a code block."""
    return json.dumps(value)
