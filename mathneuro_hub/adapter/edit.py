"""The arithmetic of an edit, the same wherever the values lie: multiply in fp32, round once, from the originals."""

from __future__ import annotations

import torch
from torch import Tensor

from mathneuro_hub.errors import ModelError

EDITABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def scaled(originals: Tensor, factor: Tensor | float) -> Tensor:
    """``originals`` times ``factor``, rounded once to the dtype of ``originals``.

    Args:
        originals: the base's values at masked positions, [held], any float dtype.
        factor: one number, or fp32 [held] where several adapters overlap.
    """
    exact = torch.promote_types(originals.dtype, torch.float32)
    if not isinstance(factor, Tensor):
        factor = torch.tensor(factor, dtype=torch.float32)
    return (originals.to(exact) * factor.to(originals.device)).to(originals.dtype)


def check_editable(name: str, stored: Tensor) -> None:
    """Refuse values that cannot be edited in place.

    Raises:
        ModelError
    """
    if stored.is_meta:
        raise ModelError(
            f"The values of {name} are offloaded and cannot be edited in place; load the model without offloading, "
            "or bake an edited checkpoint (mathneuro surgery bake)."
        )
    if stored.dtype not in EDITABLE:
        raise ModelError(
            f"{name} is stored as {stored.dtype}, which cannot be edited; edit and bake the full-precision base, "
            "then quantise it again."
        )
    if not stored.is_contiguous():
        raise ModelError(f"The values of {name} are not contiguous in memory; call .contiguous() on the model's data.")
