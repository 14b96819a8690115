"""Magnitude: the largest absolute values, whatever enters them. A baseline that needs no calibration."""

from __future__ import annotations

import torch

from mathneuro_hub.masks import Mask, MaskSet
from mathneuro_hub.methods.selection import each_weight, keep_top
from mathneuro_hub.weights import Coverage, WeightSource


def magnitude(source: WeightSource, coverage: Coverage, keep_ratio: float) -> MaskSet:
    """Per weight: the int(keep_ratio * numel) largest |W|."""
    return MaskSet(
        {
            weight.name: Mask.from_dense(keep_top(weight, values, torch.ones(weight.shape[1]), keep_ratio))
            for weight, values in each_weight(source, coverage)
        }
    )
