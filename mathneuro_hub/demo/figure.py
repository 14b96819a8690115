"""The demonstration's figure: math accuracy against the rest, as Figure 2 of arXiv 2410.16930."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from mathneuro_hub.demo import TASKS
from mathneuro_hub.evaluation.results import EvaluationRun, MetricScores

# Okabe and Ito's palette, told apart with any colour vision; shapes differ as well.
_STYLES = {
    "base": ("Base", "#000000", "*"),
    "mathneuro_pruned": ("MathNeuro, pruned", "#0072B2", "o"),
    "wanda_pruned": ("Wanda, pruned", "#D55E00", "s"),
    "random_pruned": ("Random, pruned", "#009E73", "^"),
    "mathneuro_scaled": ("MathNeuro, scaled by 1.1", "#CC79A7", "D"),
}


def draw(runs: Mapping[str, EvaluationRun], path: Path) -> None:
    """Write the figure as PNG: one point per run with 95 % intervals, non-math accuracy to the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for label, run in runs.items():
        name, colour, marker = _STYLES[label]
        x, x_error = _mean([run.tasks[task].primary for task, kind in TASKS.items() if kind == "non_math"])
        y, y_error = _mean([run.tasks[task].primary for task, kind in TASKS.items() if kind == "math"])
        # Points near the corner coincide: larger open markers let each be seen through the next.
        size = 15 if label == "base" else 9
        axes.errorbar(
            x, y, 1.96 * y_error, 1.96 * x_error, fmt=marker, color=colour, label=name, capsize=3,
            markersize=size, markerfacecolor="none" if label != "base" else colour, markeredgewidth=1.8, elinewidth=1,
        )  # fmt: skip
    axes.set(
        xlabel="Accuracy on the other tasks (mean of capitals and grammar)",
        ylabel="Math accuracy",
        xlim=(-0.04, 1.06),
        ylim=(-0.04, 1.08),
        title="What each edit of the bundled model leaves",
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", frameon=False)
    figure.savefig(path)


def _mean(tasks: list[MetricScores]) -> tuple[float, float]:
    """Mean accuracy over tasks and its standard error."""
    error = math.sqrt(sum((task.stderr or 0.0) ** 2 for task in tasks)) / len(tasks)
    return sum(task.score for task in tasks) / len(tasks), error
