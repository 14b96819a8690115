"""What the methods that rank entries share."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mathneuro_hub.errors import ModelError
from mathneuro_hub.masks import keep_count, top_k
from mathneuro_hub.weights import Coverage, Weight, WeightSource


def each_weight(source: WeightSource, coverage: Coverage) -> Iterator[tuple[Weight, Tensor]]:
    """Every covered weight with its values [out, in], one at a time."""
    for weight in coverage.weights.values():
        yield weight, source.read(weight)


def keep_top(weight: Weight, values: Tensor, norms: Tensor, keep_ratio: float) -> Tensor:
    """The int(keep_ratio * numel) entries of highest |W| * norms: bool [out, in].

    Raises:
        ModelError: the weight holds NaN.
        SettingError: the keep ratio is outside (0, 1].
    """
    try:
        return top_k(values, norms.to(values.device), [keep_count(keep_ratio, values.numel())])[0]
    except ModelError as error:
        raise ModelError(f"{weight.name}: {error}") from error
