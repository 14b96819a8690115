"""Interchange with PEFT: an edit as a SHiRA adapter, and a trainable SHiRA over the masked weights.

SHiRA (sparse high rank adapters, https://arxiv.org/abs/2406.13175) adds values at chosen positions of a weight. PEFT
gives every weight [out, in] exactly ``r * (out + in)`` of them, with one ``r`` for all weights. Where a mask holds
fewer, its own positions are named again with the value zero, so that neither loading nor further training ever
reaches an entry outside the mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import check_scale
from mathneuro_hub.adapter.edit import check_editable, scaled
from mathneuro_hub.base_model import BaseModel
from mathneuro_hub.errors import ModelError
from mathneuro_hub.files import check_free, replacing_folder
from mathneuro_hub.masks import Mask
from mathneuro_hub.weights import Coverage, LiveWeights, Weight, find_weights

if TYPE_CHECKING:
    from peft import ShiraConfig
    from transformers import PreTrainedModel

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# Anything but "random" keeps PEFT from drawing a mask of its own while it loads.
_MASK_TYPE = "mathneuro"


def export_peft(
    adapter: NeurosurgeryAdapter,
    base: BaseModel,
    folder: Path | str,
    *,
    scale: float | None = None,
    overwrite: bool = False,
) -> None:
    """Write the edit as a SHiRA adapter that stock ``peft.PeftModel.from_pretrained(model, folder)`` loads.

    The file holds, at each masked position, what has to be added to the base's value: the difference in fp32 (fp64 for
    a base stored in fp64). PEFT adds in fp32 and rounds once to the model's dtype, unless it is told
    ``autocast_adapter_dtype=False``. So for scale 0 and scales from 0.5 to 2 the model has the very values that
    attaching gives, loaded in the dtype it is stored in or widened to fp32; otherwise they may differ by a rounding.
    The values come from the checkpoint; the model is not loaded.

    Args:
        adapter: the edit.
        base: the base, which has to be the adapter's own.
        folder: folder to write; it appears only when complete.
        scale: instead of the adapter's recommended scale.
        overwrite: replace ``folder`` if it exists, once the new one is complete.

    Raises:
        BaseMismatchError: the adapter belongs to another base.
        ModelError: a masked weight, or the number of masked entries, that SHiRA has no form for; it is named.
        OutputError: ``folder`` exists and ``overwrite`` is off, or it cannot be written.
        SettingError: the scale is no finite number.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    factor = adapter.scale if scale is None else scale
    check_scale(factor)
    check_free(folder, overwrite)
    coverage = base.coverage(adapter.config.include_lm_head)
    adapter.check_base(base.weights, coverage)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(base.config)
    weights = _expressible(adapter, coverage, skeleton)
    rank = _rank(adapter, weights)

    tensors: dict[str, Tensor] = {}
    for weight in weights:
        mask, stored = adapter.masks[weight.name], base.weights.read(weight)
        check_editable(weight.name, stored)
        indices = _indices(mask, rank)
        rows, columns = indices[:, : mask.held].long()
        originals = stored[rows, columns].to(torch.promote_types(stored.dtype, torch.float32))
        values = originals.new_zeros(indices.shape[1])
        values[: mask.held] = scaled(originals, factor) - originals
        path = f"base_model.model.{_module(weight)}"
        tensors |= {f"{path}.shira_indices": indices, f"{path}.shira_weight": values}

    config = _config(
        weights,
        rank,
        base_model_name_or_path=adapter.config.base_model_name_or_path,
        revision=adapter.config.revision,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    record = config.to_dict() | {"target_modules": sorted(config.target_modules)}
    with replacing_folder(folder, overwrite) as aside:
        (aside / CONFIG_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (aside / WEIGHTS_FILE).write_bytes(save(tensors, {"format": "pt"}))


def shira_config(adapter: NeurosurgeryAdapter, model: PreTrainedModel) -> ShiraConfig:
    """A config for ``peft.get_peft_model(model, config)`` that trains the masked weights and nothing else.

    Every trainable value starts at zero, so that training starts at the base. PEFT's count of values per weight is
    ``r * (out + in)``; where the mask holds fewer entries, several values share one entry, as evenly as can be, and
    add up there: such an entry learns that many times faster.

    Args:
        adapter: which weights; its scale is not used.
        model: the adapter's base, unedited, the very object that is given to ``get_peft_model`` next.

    Raises:
        BaseMismatchError: the adapter belongs to another base.
        ModelError: as in :func:`export_peft`, or the model carries a PEFT adapter.
    """
    coverage = find_weights(model, adapter.config.include_lm_head)
    adapter.check_base(LiveWeights(model), coverage)
    weights = _expressible(adapter, coverage, model)
    rank = _rank(adapter, weights)
    masks = {model.get_submodule(_module(weight)): adapter.masks[weight.name] for weight in weights}

    def mask_fn(base_layer: nn.Module, r: int, **options: Any) -> _Entries:
        if base_layer not in masks:
            raise ModelError(
                "The config was made for another model object; call shira_config with the model given to PEFT."
            )
        return _Entries(_indices(masks[base_layer], rank))

    return _config(weights, rank, mask_fn, task_type="CAUSAL_LM")


def _config(
    weights: Sequence[Weight], rank: int, mask_fn: Callable[..., _Entries] | None = None, **settings: Any
) -> ShiraConfig:
    from peft import ShiraConfig

    config = ShiraConfig(r=rank, target_modules=[_module(weight) for weight in weights], **settings)
    # Set afterwards: the constructor warns of every type of mask but its own.
    config.mask_type = _MASK_TYPE
    config.mask_fn = mask_fn
    return config


def _module(weight: Weight) -> str:
    return weight.name.removesuffix(".weight")


def _expressible(adapter: NeurosurgeryAdapter, coverage: Coverage, model: nn.Module) -> list[Weight]:
    """The weights that the adapter edits; ``model`` may live on the meta device.

    Raises:
        ModelError: SHiRA would leave one of them out, or run it as something that it is not.
    """
    weights = [coverage.weights[name] for name, mask in adapter.masks.items() if mask.held]
    if not weights:
        raise ModelError("The adapter holds no weight at all; there is nothing that PEFT could load.")
    for weight in weights:
        module = model.get_submodule(_module(weight))
        # SHiRA replaces the forward of a layer by a plain linear one.
        if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
            raise ModelError(
                f"{weight.name} belongs to a {type(module).__name__}, and PEFT's SHiRA takes plain nn.Linear layers "
                "alone; attach the adapter with mathneuro_hub, or bake it (mathneuro surgery bake)."
            )
    return weights


def _rank(adapter: NeurosurgeryAdapter, weights: Sequence[Weight]) -> int:
    """The smallest ``r`` at which every weight has as many values as its mask holds.

    Raises:
        ModelError: a weight has fewer entries than that ``r`` asks of it.
    """
    needed = {weight: -(-adapter.masks[weight.name].held // sum(weight.shape)) for weight in weights}
    densest = max(weights, key=lambda weight: needed[weight])
    rank = needed[densest]
    for weight in weights:
        out, into = weight.shape
        room = out * into // (out + into)
        if rank > room:
            raise ModelError(
                f"{densest.name} holds {adapter.masks[densest.name].held} entries and needs rank {rank} in PEFT's SHiRA, "
                f"which has one rank for all weights, and {weight.name} {[out, into]} has room for rank {room} at most; "
                "lower the keep ratio, or bake the adapter (mathneuro surgery bake)."
            )
    return rank


def _indices(mask: Mask, rank: int) -> Tensor:
    """Row and column of every value, int32 [2, rank * (out + in)]: the masked ones in order, then again from the first."""
    entries = torch.stack([mask.rows, mask.columns().to(torch.int32)]).cpu()
    return entries[:, torch.arange(rank * sum(mask.shape)) % mask.held]


class _Entries:
    """What PEFT takes for a mask, as positions: a dense mask cannot name an entry twice, and takes the weight's memory.

    PEFT reads a mask by ``torch.where(mask == 1.0)`` and in no other way.
    """

    def __init__(self, indices: Tensor) -> None:
        self.indices = indices

    def __eq__(self, other: object) -> _Entries:  # type: ignore[override]
        return self

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> tuple[Tensor, Tensor]:
        if function is not torch.where:
            raise TypeError(f"a SHiRA mask of positions has no {function.__name__}")
        rows, columns = args[0].indices
        return rows, columns
