"""Taking turns, medians, ratios: how every figure of the benchmarks is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One step: what was measured, against what, and what was hoped for.

    Attributes:
        step: what was done, on what.
        value: the figure, with its unit in words.
        reach: what the project wants of it.
        reached: whether it was; None where nothing can be said.
        details: the raw figures.
    """

    step: str
    value: str
    reach: str
    reached: bool | None
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def interleaved(steps: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, list[float]]:
    """Seconds of each step, the steps taking turns, so that a drift of the machine's speed meets them alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in times.items()}


def ratio(times: dict[str, list[float]], step: str, other: str) -> float:
    """Median over the turns of step / other within one turn."""
    return statistics.median(a / b for a, b in zip(times[step], times[other], strict=True))
