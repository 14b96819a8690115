"""Paired statistics against known values, plain enumeration, scipy, and simulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mathneuro_hub.errors import EvaluationError, SettingError
from mathneuro_hub.evaluation import EvaluationRun, EvaluationSettings, MetricScores, TaskScores
from mathneuro_hub.evaluation.compare import (
    compare,
    compare_scores,
    holm,
    mcnemar,
    paired_bootstrap,
    paired_interval,
    questions_needed,
)

SETTINGS = EvaluationSettings(
    model="org/base",
    tasks=("t",),
    batch_size=8,
    limit=None,
    num_fewshot=None,
    apply_chat_template=False,
    seed=0,
    max_length=128,
    dtype="float32",
    device="cpu",
    include_path=None,
    versions={"lm_eval": "0.4.13"},
)


def scores(values: dict[str, float], task: str = "t", metric: str = "acc", filter_name: str = "none") -> MetricScores:
    return MetricScores(task, metric, filter_name, True, values)


def run(label: str, *metrics: MetricScores, **settings: object) -> EvaluationRun:
    by_task: dict[str, TaskScores] = {}
    for metric in metrics:
        earlier = by_task[metric.task].metrics if metric.task in by_task else ()
        by_task[metric.task] = TaskScores(metric.task, 0, "1", (*earlier, metric))
    return EvaluationRun(label, by_task, replace(SETTINGS, **settings))


def numbered(values: list[float]) -> dict[str, float]:
    return {f"q{i}": value for i, value in enumerate(values)}


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_the_two_sided_binomial_sum(gained: int, lost: int) -> None:
    changed = gained + lost
    chances = [Fraction(math.comb(changed, k), 2**changed) for k in range(changed + 1)]
    exact = sum(chance for chance in chances if chance <= chances[gained])
    assert mcnemar(gained, lost) == pytest.approx(float(exact), rel=1e-12)


def test_published_example() -> None:
    # Airway hyper-responsiveness before and after stem cell transplantation, 1 and 7 of 21 changed: Fagerland,
    # Lydersen, Laake (2014), Statistics in Medicine 33(16), 2850-2875; exact p .070, Bonett-Price -.508 to -.013.
    assert mcnemar(1, 7) == pytest.approx(0.0703125)
    assert paired_interval(1, 7, 21) == pytest.approx((-0.508, -0.013), abs=5e-4)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_interval_has_width_stays_in_range_and_mirrors(gained: int, lost: int, same: int) -> None:
    n = gained + lost + same
    low, high = paired_interval(gained, lost, n)
    assert -1 <= low < high <= 1
    assert paired_interval(lost, gained, n) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("up", "down", "n"), [(0.10, 0.05, 100), (0.02, 0.02, 120), (0.9, 0.02, 200), (0.3, 0.2, 30)])
def test_interval_covers_the_true_difference_in_95_percent_of_simulated_runs(up: float, down: float, n: int) -> None:
    draws = np.random.default_rng(1).multinomial(n, [up, down, 1 - up - down], size=4000)
    bounds = [paired_interval(int(gained), int(lost), n) for gained, lost, _ in draws]
    assert 0.94 <= np.mean([low <= up - down <= high for low, high in bounds]) <= 0.995  # few changed answers: wider


def test_mcnemar_raises_false_alarms_in_at_most_5_percent_of_simulated_runs() -> None:
    draws = np.random.default_rng(2).multinomial(150, [0.1, 0.1, 0.8], size=2000)
    assert np.mean([mcnemar(int(gained), int(lost)) < 0.05 for gained, lost, _ in draws]) <= 0.05


def test_bootstrap_agrees_with_scipy_and_the_t_test() -> None:
    differences = np.random.default_rng(3).normal(0.05, 0.3, size=200)
    low, high, p = paired_bootstrap(differences)
    theirs = stats.bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(4)
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.003)
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    assert paired_bootstrap(differences) == (low, high, p)
    assert paired_bootstrap(-differences)[2] == pytest.approx(p, abs=0.01)


def test_bootstrap_resamples_10000_times_whatever_the_size() -> None:
    differences = np.random.default_rng(5).normal(1.0, 0.1, size=3001)
    assert paired_bootstrap(differences)[2] == 2 / 10_001
    assert paired_bootstrap(np.zeros(50)) == (0.0, 0.0, 1.0)


def test_holm_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.5, 0.9]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_order_and_never_lowers(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    ranked = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in ranked] == sorted(adjusted)
    assert min(adjusted) == min(1.0, len(p_values) * min(p_values))


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_p(p: float) -> None:
    with pytest.raises(SettingError, match="p value"):
        holm([0.5, p])


def test_questions_needed_known_value() -> None:
    # .50 gained and .20 lost, alpha .05, power .80: 59 pairs (Chow, Shao, Wang, Sample Size Calculations, 6.2).
    assert questions_needed(0.7, 0.3) == questions_needed(0.7, -0.3) == 59


def test_questions_needed_gives_the_power_it_says() -> None:
    n = questions_needed(0.2, 0.05)
    draws = np.random.default_rng(6).multinomial(n, [0.125, 0.075, 0.8], size=1500)
    assert np.mean([mcnemar(int(gained), int(lost)) < 0.05 for gained, lost, _ in draws]) == pytest.approx(
        0.8, abs=0.04
    )


@pytest.mark.parametrize(
    ("rate", "difference", "power", "alpha"),
    [
        (0.1, 0, 0.8, 0.05),
        (0.1, 0.2, 0.8, 0.05),
        (1.1, 0.2, 0.8, 0.05),
        (0.1, math.nan, 0.8, 0.05),
        (0.1, 0.05, 1, 0.05),
        (0.1, 0.05, 0.8, 0),
    ],
)
def test_questions_needed_refuses_the_impossible(rate: float, difference: float, power: float, alpha: float) -> None:
    with pytest.raises(SettingError):
        questions_needed(rate, difference, power, alpha)


def test_binary_scores_are_paired_by_question_not_by_position() -> None:
    base = scores({"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0})
    edited = scores({"d": 0.0, "c": 1.0, "b": 1.0, "a": 0.0})
    found = compare_scores(base, edited)
    assert (found.gained, found.lost, found.n) == (1, 2, 4)
    assert (found.base, found.edited, found.difference) == (0.75, 0.5, -0.25)
    assert found.base_stderr == pytest.approx(stats.sem([1, 1, 0, 1]))
    assert found.test == "exact McNemar"
    assert found.p == 1.0
    assert found.within_noise
    assert found.verdict == "within noise"


def test_a_collapse_is_told_in_words() -> None:
    base, edited = scores(numbered([1.0] * 20)), scores(numbered([0.0] * 18 + [1.0] * 2))
    found = compare_scores(base, edited)
    assert found.verdict == "lower by 0.900"
    assert not found.within_noise
    assert compare_scores(edited, base).verdict == "higher by 0.900"
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == "lower by 0.900"


def test_scores_between_0_and_1_go_through_the_bootstrap() -> None:
    rng = np.random.default_rng(7)
    base = rng.uniform(size=100)
    found = compare_scores(scores(numbered(list(base))), scores(numbered(list(base + 0.2))))
    assert found.test == "paired bootstrap"
    assert found.difference == pytest.approx(0.2)
    assert found.low == pytest.approx(found.high)
    assert (found.gained, found.lost) == (100, 0)
    assert not found.within_noise


def test_one_question_has_no_standard_error() -> None:
    found = compare_scores(scores({"a": 1.0}), scores({"a": 0.0}))
    assert found.base_stderr is None
    assert found.within_noise


def test_every_metric_filter_and_group_is_compared() -> None:
    def made(label: str, good: float) -> EvaluationRun:
        made = run(
            label,
            scores({"a": 1.0, "b": good}, "t", "exact_match", "strict-match"),
            scores({"a": 1.0, "b": 1.0}, "t", "exact_match", "flexible-extract"),
            scores({"a": 0.0}, "u", "exact_match", "strict-match"),
        )
        return replace(made, groups={"g": ("t", "u")})

    found = {(c.task, c.filter): c for c in compare(made("base", 1.0), made("edited", 0.0))}
    assert list(found) == [
        ("g", "strict-match"),
        ("t", "strict-match"),
        ("t", "flexible-extract"),
        ("u", "strict-match"),
    ]
    assert (found["g", "strict-match"].n, found["g", "strict-match"].lost) == (3, 1)
    assert [c.primary for c in found.values()] == [True, True, False, True]


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        (run("edited", scores({"a": 1.0, "c": 1.0})), "2 questions are in only one"),
        (run("edited", scores({"a": 1.0})), "1 questions are in only one"),
        (run("edited", scores({"a": 1.0, "b": 1.0}, "u")), "t, u"),
        (run("edited", scores({"a": 1.0, "b": 1.0}, metric="acc_norm")), "acc,none, acc_norm,none"),
        (run("edited", scores({"a": 1.0, "b": 1.0}), batch_size=16), "batch_size is 8 in one and 16"),
        (run("edited", scores({"a": 1.0, "b": 1.0}), dtype="bfloat16"), "dtype"),
        (EvaluationRun("edited", {"t": TaskScores("t", 0, "2", (scores({"a": 1.0, "b": 1.0}),))}, SETTINGS), "version"),
    ],
)
def test_runs_that_cannot_be_paired_are_refused(edited: EvaluationRun, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        compare(run("base", scores({"a": 1.0, "b": 0.0})), edited)
