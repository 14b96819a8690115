"""Which weights of a model can be edited, and how to read and patch them.

Everything that differs between architectures ends here: above this module a weight is a matrix [out, in] with one
name, the name of its parameter, whatever stores it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mathneuro_hub.errors import ModelError
from mathneuro_hub.masks.arrays import sort

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from mathneuro_hub.masks import Mask

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True)
class Weight:
    """An editable matrix.

    Attributes:
        name: the parameter's name, for instance ``model.layers.0.mlp.up_proj.weight``.
        shape: [out, in].
        transposed: stored as [in, out], as GPT-2's ``Conv1D`` does.
    """

    name: str
    shape: tuple[int, int]
    transposed: bool = False

    def view(self, stored: Tensor) -> Tensor:
        """``stored`` seen as [out, in], without a copy."""
        return stored.T if self.transposed else stored

    def positions(self, mask: Mask) -> Tensor:
        """Where the entries of ``mask`` lie in the stored tensor: int64 [held], flat in its own layout, ascending.

        In memory's order, since writing across it costs several times more than this sort.
        """
        return mask.columns() * self.shape[0] + mask.rows if self.transposed else sort(mask.flat())


@dataclass(frozen=True)
class LeftOut:
    """A parameter that no edit reaches, and why."""

    name: str
    numel: int
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What of a model can be edited: nothing is skipped without a line here.

    Attributes:
        weights: the covered weights by name, in the model's order.
        total: parameters of the model, tied ones counted once.
        left_out: every other parameter.
        include_lm_head: whether the output embedding was asked for.
    """

    weights: dict[str, Weight]
    total: int
    left_out: tuple[LeftOut, ...]
    include_lm_head: bool = False

    @property
    def covered(self) -> int:
        """Parameters covered."""
        return sum(out * into for out, into in (w.shape for w in self.weights.values()))


def find_weights(model: nn.Module, include_lm_head: bool = False) -> Coverage:
    """Find the ``nn.Linear`` and ``Conv1D`` weights of ``model``; it may live on the meta device.

    A weight that shares its parameter with another module (a tied output embedding) is left out, since an edit
    through one name would be seen through the other.

    Raises:
        ModelError: nothing can be covered, or the model carries a PEFT adapter.
    """
    if getattr(model, "peft_config", None):
        raise ModelError(
            "The model carries a PEFT adapter, whose weights would be mistaken for the base's; "
            "call merge_and_unload() on it, or load the base model alone."
        )
    names_of: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    outputs = getattr(model, "get_output_embeddings", None)
    head = outputs() if callable(outputs) else None

    weights: dict[str, Weight] = {}
    reasons: dict[str, str] = {}
    for path, module in model.named_modules():
        name = f"{path}.weight"
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):
            continue
        if isinstance(module, nn.Embedding):
            reasons[name] = "embedding"
        elif isinstance(module, nn.Linear | Conv1D):
            others = [other for other in names_of.get(id(weight), []) if other != name]
            if others:
                reasons[name] = f"shares its values with {others[0]}"
            elif module is head and not include_lm_head:
                reasons[name] = "output embedding, covered on request (include_lm_head)"
            elif weight.dim() != 2 or not weight.is_floating_point():
                reasons[name] = f"packed values of a quantised layer ({type(module).__name__}, {weight.dtype})"
            else:
                transposed = isinstance(module, Conv1D)
                rows, columns = weight.shape
                weights[name] = Weight(name, (columns, rows) if transposed else (rows, columns), transposed)

    left_out = [
        LeftOut(name, parameter.numel(), reasons.get(name) or _reason(name, parameter))
        for name, parameter in model.named_parameters()
        if name not in weights
    ]
    if not weights:
        raise ModelError(
            f"{type(model).__name__} has no weight that can be edited: no nn.Linear or Conv1D with float values; "
            "use a causal language model in full precision."
        )
    total = sum(parameter.numel() for parameter in model.parameters())
    return Coverage(weights, total, tuple(left_out), include_lm_head)


def _reason(name: str, parameter: Tensor) -> str:
    if parameter.dim() < 2:
        return "bias" if name.endswith("bias") else "vector (a norm's scale, for instance)"
    return f"not a linear layer's weight ({parameter.dim()}-D)"


def find_checkpoint_weights(config: PretrainedConfig, include_lm_head: bool = False) -> Coverage:
    """:func:`find_weights` for the causal language model that ``config`` describes, without its values."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        except ValueError as error:
            raise ModelError(
                f"No causal language model is known for model type {config.model_type!r}; "
                "use a decoder model that AutoModelForCausalLM loads."
            ) from error
    return find_weights(model, include_lm_head)


class WeightSource(Protocol):
    """Where values of weights are read from."""

    def read(self, weight: Weight) -> Tensor:
        """The values as [out, in], in the dtype they are stored in; not to be written to."""
        ...


class LiveWeights:
    """Weights of a loaded model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def read(self, weight: Weight) -> Tensor:
        parameter = self.model.get_parameter(weight.name)
        if parameter.is_meta:
            raise ModelError(
                f"The values of {weight.name} are offloaded; read them from the checkpoint folder "
                "(CheckpointWeights) instead of the loaded model."
            )
        return weight.view(parameter.detach())


class CheckpointWeights:
    """Weights of a checkpoint folder, read from its safetensors files one at a time; the model is never loaded."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.files = checkpoint_files(self.folder)
        self._stored_name = _StoredNames(self.files)

    def read(self, weight: Weight) -> Tensor:
        name, file = self.locate(weight)
        try:
            with safe_open(self.folder / file, framework="pt") as shard:
                stored = shard.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} in {self.folder} cannot be read ({error}); fetch or copy it again.") from error
        out, into = weight.shape
        if tuple(stored.shape) != ((into, out) if weight.transposed else (out, into)):
            raise ModelError(
                f"{name} in {file} has shape {list(stored.shape)}, the model's config asks for [{out}, {into}]; "
                "the config and the weights are not of one checkpoint."
            )
        return weight.view(stored)

    def locate(self, weight: Weight) -> tuple[str, str]:
        """The tensor's name in the checkpoint and the file that holds it."""
        name = self._stored_name(weight.name)
        if name is None:
            raise ModelError(
                f"{weight.name} is not in the checkpoint {self.folder} under that name, with or without the "
                "base model's prefix; load the model and save it again with save_pretrained."
            )
        return name, self.files[name]


class _StoredNames:
    """Maps a parameter's name to the checkpoint's: the same, or without the base model's prefix (GPT-2's own)."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def __call__(self, name: str) -> str | None:
        for candidate in (name, name.partition(".")[2]):
            if candidate in self.files:
                return candidate
        return None


def checkpoint_files(folder: Path) -> dict[str, str]:
    """Tensor name to file name for the safetensors checkpoint in ``folder``, sharded or not.

    Raises:
        ModelError: there is none, or its index is damaged.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        try:
            table: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise ModelError(f"{index} is damaged ({error}); fetch it again.") from error
        missing = sorted({file for file in table.values() if not (folder / file).is_file()})
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]}, which its index names; fetch the checkpoint again.")
        return table
    single = folder / SINGLE_FILE
    if single.is_file():
        try:
            with safe_open(single, framework="pt") as tensors:
                return dict.fromkeys(tensors.keys(), SINGLE_FILE)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{single} cannot be read ({error}); fetch it again.") from error
    raise ModelError(
        f"{folder} holds no safetensors checkpoint ({SINGLE_FILE} or {INDEX_FILE}); convert it by loading it with "
        "AutoModelForCausalLM.from_pretrained and save_pretrained."
    )
