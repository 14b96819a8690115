"""MathNeuro: the weights that matter for the skill and for none of the contrasts.

Christ, Gottesman, Kropko, Hartvigsen: Math Neurosurgery, https://arxiv.org/abs/2410.16930, section 3. Several contrasts
take away the union of what each of them keeps; a keep ratio of their own follows Wei et al.,
https://arxiv.org/abs/2402.05162.
"""

from __future__ import annotations

from collections.abc import Sequence

from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.errors import SettingError
from mathneuro_hub.masks import Mask, MaskSet
from mathneuro_hub.methods.selection import each_weight, keep_top
from mathneuro_hub.weights import Coverage, WeightSource


def mathneuro(
    source: WeightSource,
    coverage: Coverage,
    skill: ActivationNorms,
    contrasts: Sequence[ActivationNorms],
    keep_ratio: float,
    contrast_keep_ratio: float | None = None,
) -> MaskSet:
    """Per weight: the int(keep_ratio * numel) highest scores for the skill, minus those kept for any contrast.

    Args:
        source: where the values are read from, one weight at a time.
        coverage: which weights.
        skill: norms over the skill's texts.
        contrasts: norms over other texts, one or more sets.
        keep_ratio: share of each weight's entries kept for the skill, in (0, 1].
        contrast_keep_ratio: the same for the contrasts; default ``keep_ratio``.

    Raises:
        SettingError: a keep ratio outside (0, 1], or no contrast.
    """
    if not contrasts:
        raise SettingError("MathNeuro needs a contrast to take away; give one (--contrast), or use method 'wanda'.")
    contrast_ratio = keep_ratio if contrast_keep_ratio is None else contrast_keep_ratio
    masks = {}
    for weight, values in each_weight(source, coverage):
        held = keep_top(weight, values, skill[weight.name], keep_ratio)
        for contrast in contrasts:
            held &= ~keep_top(weight, values, contrast[weight.name], contrast_ratio)
        masks[weight.name] = Mask.from_dense(held)
    return MaskSet(masks)
