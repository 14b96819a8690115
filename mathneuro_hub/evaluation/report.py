"""A base run beside an edited one: the results file, and the comparison in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mathneuro_hub.errors import FormatError
from mathneuro_hub.evaluation.compare import Comparison, compare
from mathneuro_hub.evaluation.results import EvaluationRun
from mathneuro_hub.files import replacing

RESULTS_FILE = "eval_results.json"


@dataclass(frozen=True)
class EvaluationReport:
    """The base's run, and the edited model's where there is one.

    Attributes:
        base: the unedited model.
        edited: the same loaded model with the edit in force; None if only the base was scored.
        scale: the scale of the edit.
        control: the same with a random mask of the same size, where it was run.
    """

    base: EvaluationRun
    edited: EvaluationRun | None = None
    scale: float | None = None
    control: EvaluationRun | None = None

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Edited against base, every metric of every task."""
        return compare(self.base, self.edited) if self.edited else []

    @cached_property
    def control_comparisons(self) -> list[Comparison]:
        """The random mask against base, every metric of every task."""
        return compare(self.base, self.control) if self.control else []

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_dict` gives an equal report back."""
        return {
            "scale": self.scale,
            "base": self.base.to_dict(),
            "edited": self.edited.to_dict() if self.edited else None,
            "control": self.control.to_dict() if self.control else None,
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> EvaluationReport:
        edited, control = record["edited"], record["control"]
        return cls(
            EvaluationRun.from_dict(record["base"]),
            EvaluationRun.from_dict(edited) if edited else None,
            record["scale"],
            EvaluationRun.from_dict(control) if control else None,
        )


def save_reports(path: Path, reports: Sequence[EvaluationReport]) -> None:
    """Write reports, with the value of every question, as one JSON file."""
    with replacing(path) as aside:
        record = {"reports": [report.to_dict() for report in reports]}
        aside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def load_reports(path: Path) -> list[EvaluationReport]:
    """Read what :func:`save_reports` wrote.

    Raises:
        FormatError: the file is damaged or none of ours.
    """
    try:
        return [EvaluationReport.from_dict(record) for record in json.loads(path.read_text("utf-8"))["reports"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} holds no evaluation results ({error}); run `mathneuro eval` again.") from error
