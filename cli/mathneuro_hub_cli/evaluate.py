"""``mathneuro eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output, table

if TYPE_CHECKING:
    from mathneuro_hub.evaluation import EvaluationReport, EvaluationRun, TaskScores


def evaluate(
    model: options.Model,
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="lm-eval tasks or groups, separated by commas.")],
    adapter: Annotated[
        str | None, typer.Option("--adapter", "-a", help="Adapter to compare with the base: a folder, or a Hub id.")
    ] = None,
    scale: options.ScaleOfAdapter = None,
    include_path: Annotated[Path | None, typer.Option(help="Folder with lm-eval tasks of your own.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first questions of each task.")] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="Worked examples in the prompt.", show_default="each task's own")
    ] = None,
    apply_chat_template: Annotated[bool, typer.Option("--apply-chat-template", help="Prompt through it.")] = False,
    batch_size: Annotated[int, typer.Option(help="Questions per forward pass, the same for base and edited.")] = 8,
    seed: options.Seed = 0,
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Results file to write (JSON).")] = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Score a model with lm-eval; with an adapter, base and edited on the same questions, and their difference.

    Example: mathneuro eval -m demo -a math/ --scale 0 -t demo_math,demo_capitals,demo_grammar
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryModel
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.errors import SettingError
    from mathneuro_hub.evaluation import EvaluationReport, save_reports
    from mathneuro_hub.evaluation.harness import evaluate
    from mathneuro_hub.files import check_free

    out = Output(form)
    if output is not None:
        check_free(output, overwrite)
    if scale is not None and adapter is None:
        raise SettingError(f"--scale {scale:g} needs an adapter to scale; give one (--adapter).")
    loaded = NeurosurgeryAdapter.from_pretrained(adapter) if adapter else None
    base = find_base(model, revision)
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    tokenizer, live = base.tokenizer(), base.load(dtype, device, device_map)
    attached = NeurosurgeryModel.from_pretrained(live, loaded, scale=scale) if loaded else None

    def run(label: str) -> EvaluationRun:
        return evaluate(
            live,
            tokenizer,
            names,
            include_path=include_path or options.bundled_tasks(names),
            limit=limit,
            batch_size=batch_size,
            num_fewshot=num_fewshot,
            apply_chat_template=apply_chat_template,
            seed=seed,
            label=label,
            model_name=base.public_name,
            on_progress=lambda done, total: out.progress(f"Evaluating {label}", done, total, "questions"),
        )

    if attached is None:
        report = EvaluationReport(run("base"))
    else:
        factor = attached.scales["default"]
        with attached.disable_adapter():
            base_run = run("base")
        report = EvaluationReport(base_run, run(f"scale {factor:g}"), factor)
    if output is not None:
        save_reports(output, [report])
    out.result(
        report.to_dict() | {"path": str(output) if output else None},
        human=render(report) + (f"\nSaved {output}" if output else ""),
        quiet=str(output) if output else "\n".join(f"{name} {t.primary.score:.4f}" for name, t in _last(report)),
    )


def _last(report: EvaluationReport) -> list[tuple[str, TaskScores]]:
    return list((report.edited or report.base).scores.items())


def render(report: EvaluationReport) -> str:
    """The report as a table: both scores with standard errors, the paired difference with its interval and p."""
    if report.edited is None:
        rows = [
            (m.task, f"{m.metric},{m.filter}", m.n, _score(m.score, m.stderr))
            for scores in report.base.scores.values()
            for m in scores.metrics
        ]
        return table(("task", "metric", "n", "score"), rows)
    compared = [
        (
            c.task,
            f"{c.metric},{c.filter}",
            c.n,
            _score(c.base, c.base_stderr),
            _score(c.edited, c.edited_stderr),
            f"{c.difference:+.3f} [{c.low:+.3f}, {c.high:+.3f}]",
            f"{c.p:.2g}",
            c.verdict,
        )
        for c in report.comparisons
    ]
    headers = ("task", "metric", "n", "base", "edited", "difference [95 %]", "p", "")
    return (
        table(headers, compared) + "\n± is one standard error; p by exact McNemar or paired bootstrap, not corrected."
    )


def _score(score: float, stderr: float | None) -> str:
    return f"{score:.3f}" if stderr is None else f"{score:.3f} ± {stderr:.3f}"
