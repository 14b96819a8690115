"""``mathneuro surgery pull``, ``list`` and ``show``: what others have published."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output, table
from mathneuro_hub_cli.views import adapter_view


class Order(StrEnum):
    """How a listing is sorted, downwards."""

    downloads = "downloads"
    date = "date"


def pull(
    repo_id: Annotated[str, typer.Argument(metavar="TEAM/NAME", help="The adapter on the Hub.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder to write.", show_default="NAME")] = None,
    revision: options.AdapterRevision = None,
    token: options.Token = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Fetch a published adapter, with its card and results, into a folder.

    Example: mathneuro surgery pull team/base-mathneuro -o math/
    """
    import shutil

    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.adapter.location import find_adapter
    from mathneuro_hub.files import check_free, replacing_folder

    out = Output(form)
    target = output or Path(repo_id.rpartition("/")[2])
    check_free(target, overwrite)
    folder = find_adapter(repo_id, revision=revision, token=token, patterns=None)
    config = NeurosurgeryAdapter.from_pretrained(folder).config
    with replacing_folder(target, overwrite) as aside:
        # The cache holds links; a folder that was pulled holds files.
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git*"))
    out.result(
        {"path": str(target), "repo_id": repo_id, "commit": folder.name, "held": config.held, "scale": config.scale},
        human=f"{config.held:,} weights of {config.base_model_name_or_path}, recommended scale {config.scale:g}, "
        f"at commit {folder.name}\nSaved {target}",
        quiet=str(target),
    )


def list_published(
    base_model: Annotated[str, typer.Option("--base-model", "-m", help="Hub id of the base: ORG/BASE.")],
    sort: Annotated[Order, typer.Option(help="What comes first.")] = Order.downloads,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    token: options.Token = None,
    form: options.OutputFormat = Format.human,
) -> None:
    """List what is published for a base model.

    Example: mathneuro surgery list --base-model org/base --sort date
    """
    from mathneuro_hub.publishing.hub import find_adapters

    found = find_adapters(base_model, sort=sort.value, limit=limit, token=token)
    dates = [entry.modified.date().isoformat() if entry.modified else "" for entry in found]
    rows = [
        (entry.repo_id, entry.kind, f"{entry.downloads:,}", date, "private" if entry.private else "")
        for entry, date in zip(found, dates, strict=True)
    ]
    Output(form).result(
        {
            "base_model": base_model,
            "published": [
                {
                    "repo_id": entry.repo_id,
                    "kind": entry.kind,
                    "downloads": entry.downloads,
                    "modified": entry.modified.isoformat() if entry.modified else None,
                    "private": entry.private,
                }
                for entry in found
            ],
        },
        human=table(("repo", "kind", "downloads", "changed", ""), rows)
        if rows
        else f"Nothing is published for {base_model} yet.",
        quiet="\n".join(entry.repo_id for entry in found),
    )


def show(
    place: Annotated[str, typer.Argument(metavar="ADAPTER", help="Adapter folder or Hub id.")],
    revision: options.AdapterRevision = None,
    token: options.Token = None,
    form: options.OutputFormat = Format.human,
) -> None:
    """Show what an adapter edits, how it came about, and what was measured.

    Example: mathneuro surgery show team/base-mathneuro
    """
    from mathneuro_hub.adapter.config import CONFIG_FILE, MASKS_FILE
    from mathneuro_hub.evaluation.report import RESULTS_FILE, load_reports
    from mathneuro_hub.publishing.metadata import data_sets
    from mathneuro_hub_cli.evaluate import render

    view = adapter_view(place, revision=revision, token=token, patterns=[CONFIG_FILE, MASKS_FILE, RESULTS_FILE])
    config = view.adapter.config
    path = view.folder / RESULTS_FILE
    reports = load_reports(path) if path.is_file() else []
    sets: list[dict[str, Any]] = data_sets(config)
    origin = [
        f"base model {config.base_model_name_or_path}"
        + (f" at revision {config.revision}" if config.revision else " (not on the Hub)"),
        *(f"{entry['role']} {entry['name']}: {entry['samples']} samples, {entry['tokens']:,} tokens" for entry in sets),
        "made with " + ", ".join(f"{name} {version}" for name, version in config.versions.items()),
    ]
    measured = []
    for report in reports:
        measured += ["", f"Scale {report.scale:g}:" if report.scale is not None else "Base:", render(report)]
    Output(form).result(
        {
            **view.data,
            "data_sets": sets,
            "versions": dict(config.versions),
            "results": [
                {"scale": report.scale, "comparisons": [c.to_dict() for c in report.comparisons]} for report in reports
            ],
        },
        human="\n".join((view.human, "", *origin, *(measured or ["", "Not evaluated."]))),
        quiet=str(config.held),
    )
