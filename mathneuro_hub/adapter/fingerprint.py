"""Knowing a base again by the values that an adapter is about to change."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from mathneuro_hub.adapter.config import NeurosurgeryConfig, WeightRecord
from mathneuro_hub.errors import BaseMismatchError
from mathneuro_hub.masks import Mask, MaskSet
from mathneuro_hub.weights import Coverage, WeightSource

_POSITIONS = 1024


def record_weight(values: Tensor, mask: Mask) -> WeightRecord:
    """Shape, count and hashes of one weight; ``values`` is [out, in] in any float dtype.

    Rounding to bfloat16 lets the same base match when it is loaded in another float dtype. float16 has to be
    recorded on its own: rounding through it first gives another bfloat16 value for one weight in some hundred.
    """
    sampled = _sample(values, mask)
    return WeightRecord(mask.shape, mask.held, _digest(sampled), _digest(sampled.to(torch.float16)))


def check_base(config: NeurosurgeryConfig, masks: MaskSet, source: WeightSource, coverage: Coverage) -> None:
    """Refuse a base that is not the one the adapter was made on.

    Raises:
        BaseMismatchError: a weight is missing, has another shape, or holds other values; it is named.
    """
    # Names and shapes first: they say more plainly than a hash that it is another model.
    for name, record in config.weights.items():
        weight = coverage.weights.get(name)
        if weight is None:
            raise BaseMismatchError(f"{_intro(config)}: this model has no editable weight {name}; load that base.")
        if weight.shape != record.shape:
            raise BaseMismatchError(
                f"{_intro(config)}: {name} has shape {list(weight.shape)} here and {list(record.shape)} there; "
                "load that base."
            )
    for name, record in config.weights.items():
        values = source.read(coverage.weights[name])
        expected = record.fp16 if values.dtype == torch.float16 else record.bf16
        if _digest(_sample(values, masks[name])) != expected:
            raise BaseMismatchError(
                f"{_intro(config)}: {name} holds other values here; load that base and revision, unedited."
            )


def _intro(config: NeurosurgeryConfig) -> str:
    revision = f" at revision {config.revision}" if config.revision else ""
    return f"The adapter belongs to {config.base_model_name_or_path}{revision}, not to this model"


def _sample(values: Tensor, mask: Mask) -> Tensor:
    """Values at up to 1,024 masked positions, evenly spaced in the mask's order (by column, then by row)."""
    count = min(mask.held, _POSITIONS)
    chosen = torch.arange(count, dtype=torch.int64, device=mask.rows.device) * mask.held // max(count, 1)
    rows, columns = mask.rows.long()[chosen], mask.columns()[chosen]
    return values[rows.to(values.device), columns.to(values.device)]


def _digest(sampled: Tensor) -> str:
    data = sampled.to(torch.bfloat16).view(torch.int16).cpu().numpy().astype("<i2").tobytes()
    return hashlib.sha256(data).hexdigest()[:32]
