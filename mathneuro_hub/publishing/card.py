"""Model cards: what an adapter or a baked model is, from its own config and its measured results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import NeurosurgeryConfig
from mathneuro_hub.base_model import DEMO
from mathneuro_hub.evaluation.report import RESULTS_FILE, EvaluationReport, save_reports
from mathneuro_hub.files import replacing_folder
from mathneuro_hub.publishing.amend import BEGIN, END
from mathneuro_hub.publishing.figure import FIGURE_FILE, draw
from mathneuro_hub.publishing.metadata import (
    data_sets,
    has_hub_base,
    is_hub_id,
    join,
    leaderboard_entries,
    metadata,
)
from mathneuro_hub.remote import endpoint

CARD_FILE = "README.md"
LEADERBOARD_FOLDER = ".eval_results"


def save_adapter(
    adapter: NeurosurgeryAdapter,
    folder: Path | str,
    *,
    overwrite: bool = False,
    results: Sequence[EvaluationReport] = (),
    base_card: str | None = None,
) -> None:
    """Write an adapter with its card, and its evaluation results if there are any.

    Args:
        adapter: the adapter.
        folder: folder to write; it appears only when complete.
        overwrite: replace ``folder`` if it exists.
        results: its evaluations.
        base_card: text of the base's card, whose licence is inherited.

    Raises:
        OutputError: the folder exists and ``overwrite`` is off, or it cannot be written.
    """
    with replacing_folder(Path(folder), overwrite) as aside:
        adapter.write_to(aside)
        write_card(aside, adapter, results, name=Path(folder).resolve().name, base_card=base_card)


def write_baked_card(
    adapter: NeurosurgeryAdapter,
    scale: float,
    folder: Path,
    results: Sequence[EvaluationReport] = (),
    *,
    name: str = ".",
    base_card: str | None = None,
    with_adapter: bool = False,
) -> None:
    """Write the card of a checkpoint that was baked from ``adapter`` at ``scale``, and the config it came from.

    Args:
        adapter: the edit.
        scale: what its weights were multiplied by.
        folder: the checkpoint.
        results: evaluations of the edit.
        name: Hub id or folder to load the checkpoint from, in the card's example.
        base_card: text of the base's card, whose licence is inherited.
        with_adapter: put the masks beside the checkpoint, so that the folder is an adapter as well.
    """
    baked = adapter.with_scale(scale)
    if with_adapter:
        baked.write_to(folder)
    else:
        baked.config.save(folder)
    write_card(folder, baked, results, name=name, base_card=base_card, baked=True, with_adapter=with_adapter)


def write_card(
    folder: Path,
    adapter: NeurosurgeryAdapter,
    results: Sequence[EvaluationReport],
    *,
    name: str,
    base_card: str | None,
    baked: bool = False,
    with_adapter: bool = False,
) -> None:
    """Write the card with its figure and the results, and entries of leaderboards for what fills them."""
    if results:
        save_reports(folder / RESULTS_FILE, results)
    entries = leaderboard_entries(adapter.config, results)
    if entries:
        (folder / LEADERBOARD_FOLDER).mkdir()
    for file, text in entries.items():
        (folder / LEADERBOARD_FOLDER / file).write_text(text, encoding="utf-8")
    draw(adapter.masks, folder / FIGURE_FILE)
    card = render_card(adapter, results, name=name, base_card=base_card, baked=baked, with_adapter=with_adapter)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def render_card(
    adapter: NeurosurgeryAdapter,
    results: Sequence[EvaluationReport],
    *,
    name: str,
    base_card: str | None = None,
    baked: bool = False,
    with_adapter: bool = False,
) -> str:
    """The card: YAML front matter, then Markdown between two markers, outside of which a person may write."""
    config = adapter.config
    environment = Environment(
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown, not HTML: values go through the md and code filters
    )
    environment.filters |= {"md": _markdown, "code": _code, "score": _score, "is_hub_id": is_hub_id}
    versions = dict(config.versions)
    for report in results:
        versions |= report.base.settings.versions
    hub_base = has_hub_base(config)
    body = environment.get_template("baked.md.jinja" if baked else "adapter.md.jinja").render(
        name=name,
        config=config,
        endpoint=endpoint(),
        hub_base=hub_base,
        base_is_found=hub_base or config.base_model_name_or_path == DEMO,
        with_adapter=with_adapter,
        command=_command(config),
        layers=adapter.masks.by_layer(),
        kinds=adapter.masks.by_kind(),
        sets=data_sets(config),
        figure=FIGURE_FILE,
        results=results,
        versions=versions,
    )
    short = name.rpartition("/")[2]
    data = metadata(config, results, baked=baked, name=short, base_card=base_card)
    return join(data, f"{BEGIN}\n\n{body.strip()}\n\n{END}")


def _command(config: NeurosurgeryConfig) -> str | None:
    """The command line that makes the adapter again, where one command does."""
    if config.method == "combined":
        return None
    words = ["mathneuro", "surgery", "create", "--model", config.base_model_name_or_path]
    if config.revision:
        words += ["--revision", config.revision]
    sets = data_sets(config)
    for entry in sets:
        words += [f"--{entry['role']}", entry["name"]]
    words += ["--method", config.method]
    for name, value in config.parameters.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    if sets:
        words += ["--num-samples", str(sets[0]["samples"])] if len({s["samples"] for s in sets}) == 1 else []
        words += ["--replacement"] if sets[0].get("replacement") else []
        words += ["--chat-template"] if sets[0].get("chat_template") else []
    if config.include_lm_head:
        words.append("--include-lm-head")
    words += ["--scale", f"{config.scale:g}", "-o", "adapter"]
    return " ".join(_shell(word) for word in words)


def _shell(word: str) -> str:
    """A word for a POSIX shell on one line: a line break inside quotes could end the code block around it."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(c if c.isprintable() and c not in "'\\" else _escaped(c) for c in word) + "'"


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _score(value: float, stderr: float | None) -> str:
    return f"{value:.3f}" if stderr is None else f"{value:.3f} ± {stderr:.3f}"


def _markdown(value: object) -> str:
    """A value inside Markdown text or a table cell, unable to start markup, a new cell or a new line."""
    text = re.sub(r"\s+", " ", str(value))
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&-])", r"\\\1", text) if not re.fullmatch(r"[\w./:, -]*", text) else text


def _code(value: object) -> str:
    """A value as inline code, unable to end it."""
    text = re.sub(r"\s+", " ", str(value)).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _template(name: str) -> str:
    return resources.files("mathneuro_hub_cards").joinpath(name).read_text(encoding="utf-8")
