"""Two runs over the same questions, compared question by question, with uncertainty.

Scores of 0 and 1: the exact test of McNemar (1947) on the questions whose answer changed, and the interval of Bonett
and Price (2012), Journal of Educational and Behavioral Statistics 37(4), 479-488, for a paired difference of
proportions, which keeps a width when no answer changed. Other scores: the paired bootstrap (Efron and Tibshirani
1993, chapter 13), percentile interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from mathneuro_hub.errors import EvaluationError, SettingError
from mathneuro_hub.evaluation.results import EvaluationRun, MetricScores, TaskScores

ALPHA = 0.05
RESAMPLES = 10_000

_SAME_SETTINGS = ("batch_size", "apply_chat_template", "max_length", "dtype")
_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Comparison:
    """One metric of one task under one filter, edited against base.

    Attributes:
        primary: the metric to name when there is room for one (``TaskScores.primary``).
        n: questions, the same ones in both runs.
        base, edited: means; base_stderr, edited_stderr: their standard errors, None for a single question.
        difference: edited - base, paired.
        low, high: 95 % interval of the difference.
        p: two-sided.
        test: how p was found: ``exact McNemar`` or ``paired bootstrap``.
        gained, lost: questions whose value rose and fell.
    """

    task: str
    metric: str
    filter: str
    higher_is_better: bool | None
    primary: bool
    n: int
    base: float
    base_stderr: float | None
    edited: float
    edited_stderr: float | None
    difference: float
    low: float
    high: float
    p: float
    test: str
    gained: int
    lost: int

    @property
    def within_noise(self) -> bool:
        """No difference beyond chance at the 5 % level. p decides: near the edge, interval and p can disagree."""
        return self.p >= ALPHA

    @property
    def verdict(self) -> str:
        """``within noise``, or by how much the edited score is higher or lower."""
        if self.within_noise:
            return "within noise"
        return f"{'higher' if self.difference > 0 else 'lower'} by {abs(self.difference):.3f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the verdict."""
        return asdict(self) | {"within_noise": self.within_noise, "verdict": self.verdict}


def compare(base: EvaluationRun, edited: EvaluationRun) -> list[Comparison]:
    """Every metric of every task and group of ``base`` against the same in ``edited``.

    Raises:
        EvaluationError: the runs differ in tasks, questions or metrics, or in a setting that shifts scores.
    """
    for name in _SAME_SETTINGS:
        ours, theirs = getattr(base.settings, name), getattr(edited.settings, name)
        if ours != theirs:
            raise EvaluationError(
                f"{base.label} and {edited.label} cannot be compared: {name} is {ours!r} in one and {theirs!r} in "
                "the other, which shifts scores; evaluate both the same way."
            )
    ours_scores, theirs_scores = base.scores, edited.scores
    if lone := set(ours_scores) ^ set(theirs_scores):
        raise EvaluationError(f"Only one of {base.label} and {edited.label} has {_some(lone)}; evaluate both on it.")
    return [
        comparison for task, scores in ours_scores.items() for comparison in _compare_task(scores, theirs_scores[task])
    ]


def _compare_task(base: TaskScores, edited: TaskScores) -> list[Comparison]:
    if base.version != edited.version:
        raise EvaluationError(
            f"{base.task} was of version {base.version} in one run and {edited.version} in the other; evaluate again."
        )
    table = {(m.metric, m.filter): m for m in edited.metrics}
    if lone := {(m.metric, m.filter) for m in base.metrics} ^ set(table):
        names = _some(f"{metric},{name}" for metric, name in lone)
        raise EvaluationError(f"{base.task} has {names} in only one of the runs; evaluate both again.")
    primary = base.primary
    return [compare_scores(m, table[m.metric, m.filter], primary=m is primary) for m in base.metrics]


def compare_scores(base: MetricScores, edited: MetricScores, *, primary: bool = True) -> Comparison:
    """
    Raises:
        EvaluationError: not the same questions.
    """
    if lone := base.values.keys() ^ edited.values.keys():
        raise EvaluationError(
            f"{base.task}: {len(lone)} questions are in only one of the two runs, so they cannot be paired; evaluate "
            "both with the same tasks, limit, worked examples and seed."
        )
    before = np.array(list(base.values.values()), dtype=np.float64)
    after = np.array([edited.values[question] for question in base.values], dtype=np.float64)
    gained, lost = int((after > before).sum()), int((after < before).sum())
    if base.binary and edited.binary:
        test = "exact McNemar"
        p = mcnemar(gained, lost)
        low, high = paired_interval(gained, lost, base.n)
    else:
        test = "paired bootstrap"
        low, high, p = paired_bootstrap(after - before)
    return Comparison(
        task=base.task,
        metric=base.metric,
        filter=base.filter,
        higher_is_better=base.higher_is_better,
        primary=primary,
        n=base.n,
        base=base.score,
        base_stderr=base.stderr,
        edited=edited.score,
        edited_stderr=edited.stderr,
        difference=math.fsum(after - before) / base.n,
        low=low,
        high=high,
        p=p,
        test=test,
        gained=gained,
        lost=lost,
    )


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p: of ``gained + lost`` changed answers, each direction has chance 1/2."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def paired_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / n: Wald after one imagined question gained and one lost (Bonett and Price)."""
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = NormalDist().inv_cdf(1 - ALPHA / 2) * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def paired_bootstrap(differences: np.ndarray[Any, np.dtype[np.float64]], seed: int = 0) -> tuple[float, float, float]:
    """95 % percentile interval and two-sided p of the mean of ``differences``, from 10,000 seeded resamples.

    p is twice the smaller share of resampled means on either side of 0, the sample itself counted, so it is never
    below 2 / 10,001.
    """
    rng = np.random.default_rng(seed)
    n = len(differences)
    at_once = max(1, _DRAWS_AT_ONCE // n)
    means = np.concatenate(
        [
            differences[rng.integers(0, n, size=(min(at_once, RESAMPLES - done), n))].mean(axis=1)
            for done in range(0, RESAMPLES, at_once)
        ]
    )
    low, high = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2])
    tail = 1 + min(int((means <= 0).sum()), int((means >= 0).sum()))
    return float(low), float(high), min(1.0, 2 * tail / (RESAMPLES + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for having looked at all of them (Holm 1979), in the order given.

    Raises:
        SettingError: a p outside [0, 1].
    """
    if bad := [p for p in p_values if not 0 <= p <= 1]:
        raise SettingError(f"A p value lies in [0, 1], not at {bad[0]}.")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def questions_needed(discordant_rate: float, difference: float, power: float = 0.8, alpha: float = ALPHA) -> int:
    """Questions at which McNemar's test sees ``difference`` with chance ``power``.

    Connor (1987), Biometrics 43(1), 207-211; the exact test needs slightly more.

    Args:
        discordant_rate: share of questions whose answer changes in either direction.
        difference: paired difference of the scores, of either sign; at most ``discordant_rate``.

    Raises:
        SettingError: a value outside its range.
    """
    gap = abs(difference)
    if not 0 < gap <= discordant_rate <= 1:
        raise SettingError(
            f"The difference ({difference}) must not be 0 nor above the discordant rate ({discordant_rate}), and "
            "that not above 1."
        )
    if not (0 < power < 1 and 0 < alpha < 1):
        raise SettingError(f"Power ({power}) and alpha ({alpha}) lie strictly between 0 and 1.")
    quantile = NormalDist().inv_cdf
    root = quantile(1 - alpha / 2) * math.sqrt(discordant_rate) + quantile(power) * math.sqrt(discordant_rate - gap**2)
    return math.ceil((root / gap) ** 2)


def _some(names: Any) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
