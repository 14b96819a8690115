"""lm-eval runs, question by question, and their paired comparison.

Running lives in :mod:`mathneuro_hub.evaluation.harness`, which is imported by itself: it brings lm-eval along.
"""

from mathneuro_hub.evaluation.compare import Comparison, compare, holm, questions_needed
from mathneuro_hub.evaluation.report import EvaluationReport, load_reports, save_reports
from mathneuro_hub.evaluation.results import EvaluationRun, EvaluationSettings, MetricScores, TaskScores

__all__ = [
    "Comparison",
    "EvaluationReport",
    "EvaluationRun",
    "EvaluationSettings",
    "MetricScores",
    "TaskScores",
    "compare",
    "holm",
    "load_reports",
    "questions_needed",
    "save_reports",
]
