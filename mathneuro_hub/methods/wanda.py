"""Wanda's score without any subtraction: the skill's top weights, shared with everything else or not.

Sun, Liu, Bair, Kolter: A Simple and Effective Pruning Approach for Large Language Models,
https://arxiv.org/abs/2306.11695, as https://arxiv.org/abs/2410.16930 compares with it: per weight tensor, with the
norms summed over samples.
"""

from __future__ import annotations

from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.masks import Mask, MaskSet
from mathneuro_hub.methods.selection import each_weight, keep_top
from mathneuro_hub.weights import Coverage, WeightSource


def wanda(source: WeightSource, coverage: Coverage, skill: ActivationNorms, keep_ratio: float) -> MaskSet:
    """Per weight: the int(keep_ratio * numel) highest scores for the skill."""
    return MaskSet(
        {
            weight.name: Mask.from_dense(keep_top(weight, values, skill[weight.name], keep_ratio))
            for weight, values in each_weight(source, coverage)
        }
    )
