"""``mathneuro demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output, table

if TYPE_CHECKING:
    from mathneuro_hub.demo.run import DemoResult


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path("demo-out"),
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Find the math weights of the bundled model, prune and scale them, and measure what changes. No network.

    Example: mathneuro demo -o demo-out
    """
    from mathneuro_hub.files import check_free

    out = Output(form)
    check_free(output, overwrite)
    out.note("Calibrating, masking and evaluating the bundled model; under a minute on two idle cores.")
    from mathneuro_hub.demo.run import run_demo

    units = {"Calibrating": "samples", "Evaluating": "questions"}
    result = run_demo(
        output,
        overwrite,
        lambda what, done, total: out.progress(what, done, total, units.get(what.split()[0], "")),
    )
    out.result(result.to_dict(), human=_render(result), quiet=str(output))


def _render(result: DemoResult) -> str:
    from mathneuro_hub.evaluation import compare

    base = result.runs["base"]
    tasks = list(base.tasks)
    rows = [("base", *(f"{base.tasks[task].primary.score:<22.3f}" for task in tasks))]
    for label, run in result.runs.items():
        if label != "base":
            found = {c.task: c for c in compare(base, run) if c.primary}
            cells = (
                f"{c.edited:.3f} [{c.low:+.2f}, {c.high:+.2f}] {'~' if c.within_noise else ' '}"
                for c in (found[task] for task in tasks)
            )
            rows.append((label.replace("_", ", "), *cells))
    counts = {task: scores.primary.n for task, scores in base.tasks.items()}
    masks = [
        (method, f"{m['count']:,}", f"{m['density']:.3%}", f"{m['bits_per_weight']:.2f}", f"{m['bytes']:,}")
        for method, m in result.masks.items()
    ]
    return "\n".join(
        (
            table(("", *(f"{task} (n={counts[task]})" for task in tasks)), rows),
            "Accuracy, then the 95 % interval of the paired difference from the base; ~ within noise (McNemar p >= .05).",
            "",
            table(("mask", "weights held", "density", "bits per weight", "file bytes"), masks),
            "",
            "The saved adapter, loaded in a fresh process, "
            + ("answered every question the same." if result.reloaded_equal else "DID NOT score the same."),
            *(f"{what.replace('_', ' '):12} {path}" for what, path in result.files.items()),
        )
    )
