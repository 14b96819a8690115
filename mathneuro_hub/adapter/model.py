"""A model with adapters attached: PEFT's verbs, edits in place, every byte of the base restored on the way out."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import check_scale
from mathneuro_hub.adapter.edit import check_editable, scaled
from mathneuro_hub.errors import ModelError, SettingError
from mathneuro_hub.weights import LiveWeights, find_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTACHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass
class _Edit:
    """One weight's edited positions, the base's values there, and which of them each adapter holds.

    Attributes:
        positions: int64 [edited], flat in the stored layout, ascending.
        originals: the base's values there, [edited], in the weight's own dtype.
        members: adapter name -> int64 indices into ``positions``, or None for all of them.
    """

    positions: Tensor
    originals: Tensor
    members: dict[str, Tensor | None] = field(default_factory=dict)

    def of(self, values: Tensor, adapter_name: str) -> Tensor:
        """Those of ``values`` [edited] that one adapter holds."""
        index = self.members[adapter_name]
        return values if index is None else values[index]

    def values(self, scales: Mapping[str, float]) -> Tensor:
        """The edited values under ``scales`` of the active adapters: where they overlap the scales multiply."""
        active = [name for name in self.members if name in scales]
        if len(active) == 1 and self.members[active[0]] is None:
            return scaled(self.originals, scales[active[0]])
        factor = torch.ones(self.positions.numel(), dtype=torch.float32, device=self.positions.device)
        for name in active:
            index = self.members[name]
            factor[slice(None) if index is None else index] *= scales[name]
        return scaled(self.originals, factor)


class NeurosurgeryModel:
    """A transformers model whose masked weights are scaled in place.

    The module tree is untouched and inference costs nothing extra; every attribute and call that is not of this
    class goes to the model itself. Edits always start from the saved originals, so that no sequence of
    scales drifts, and :meth:`unload` leaves every byte as it was.
    """

    def __init__(self, model: PreTrainedModel, adapter: NeurosurgeryAdapter, adapter_name: str = "default") -> None:
        """Attach ``adapter`` at its recommended scale; use :meth:`from_pretrained` to load one from a folder.

        Raises:
            BaseMismatchError: the adapter belongs to another base.
            ModelError: the model is edited already, or its values cannot be edited in place.
        """
        if isinstance(model, NeurosurgeryModel) or model in _ATTACHED:
            raise ModelError("The model has adapters attached already; use load_adapter or add_adapter on that object.")
        self._model = model
        self._adapters: dict[str, NeurosurgeryAdapter] = {}
        self._scales: dict[str, float] = {}
        self._active: list[str] = []
        self._edits: dict[str, _Edit] = {}
        self._disabled = False
        self.add_adapter(adapter_name, adapter)
        _ATTACHED.add(model)

    @classmethod
    def from_pretrained(
        cls,
        model: PreTrainedModel | NeurosurgeryAdapter | Path | str,
        adapter: NeurosurgeryAdapter | Path | str | None = None,
        adapter_name: str = "default",
        scale: float | None = None,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> NeurosurgeryModel:
        """Attach an adapter to a loaded base model, or to its own base, which is loaded for it.

        Args:
            model: the base, in any float dtype and on any device. Or, with no ``adapter``, the adapter: then the base
                it names is loaded at the revision it names, in the dtype it is stored in.
            adapter: an adapter, a folder of one, or its Hub id.
            adapter_name: its name in :meth:`set_scale` and the like.
            scale: instead of the adapter's recommended scale.
            revision: branch, tag or commit of the adapter on the Hub.
            token: instead of the stored login.
            cache_dir: instead of the usual cache.
            local_files_only: make no request.

        Raises:
            BaseMismatchError: the adapter belongs to another base.
            FormatError: there is no readable adapter.
            HubError, ModelError: the adapter or the base cannot be had.
        """
        places: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        if adapter is not None:
            loaded, live = _loaded(adapter, revision=revision, **places), model
        elif isinstance(model, (NeurosurgeryAdapter, Path, str)):
            loaded = _loaded(model, revision=revision, **places)
            live = loaded.find_base(**places).load()
        else:
            raise SettingError("There is no adapter to attach; give a folder or a Hub id after the model.")
        if isinstance(live, (NeurosurgeryAdapter, Path, str)):
            raise SettingError(
                f"{live} is to be the base and is not loaded; give the model itself, or the adapter alone."
            )
        return cls(live, loaded if scale is None else loaded.with_scale(scale), adapter_name)

    def __getattr__(self, name: str) -> Any:
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._base, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._base(*args, **kwargs)

    @property
    def _base(self) -> PreTrainedModel:
        if self._model is None:
            raise ModelError("This model was unloaded; use what unload() or merge_and_unload() returned.")
        return self._model

    def get_base_model(self) -> PreTrainedModel:
        """The transformers model itself, edited as it is now."""
        return self._base

    @property
    def adapters(self) -> dict[str, NeurosurgeryAdapter]:
        """The loaded adapters by name."""
        return dict(self._adapters)

    @property
    def active_adapters(self) -> list[str]:
        """Names of the adapters in force."""
        return list(self._active)

    @property
    def scales(self) -> dict[str, float]:
        """The scale of each loaded adapter."""
        return dict(self._scales)

    def load_adapter(
        self,
        adapter: NeurosurgeryAdapter | Path | str,
        adapter_name: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
    ) -> None:
        """Attach one more adapter, from a folder or the Hub, beside those in force."""
        places: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        self.add_adapter(adapter_name, _loaded(adapter, revision=revision, **places))

    def add_adapter(self, adapter_name: str, adapter: NeurosurgeryAdapter) -> None:
        """Attach one more adapter at its recommended scale.

        Raises:
            SettingError: the name is taken.
            BaseMismatchError: the adapter belongs to another base.
            ModelError: the values cannot be edited in place.
        """
        if adapter_name in self._adapters:
            raise SettingError(f"An adapter named {adapter_name!r} is attached already; choose another name.")
        coverage = find_weights(self._base, adapter.config.include_lm_head)
        for name in adapter.masks:
            if name in coverage.weights:
                check_editable(name, self._base.get_parameter(name))
        with self.disable_adapter():
            adapter.check_base(LiveWeights(self._base), coverage)
            for name, mask in adapter.masks.items():
                if mask.held:
                    self._add_positions(name, adapter_name, coverage.weights[name].positions(mask))
            self._adapters[adapter_name] = adapter
            self._scales[adapter_name] = adapter.scale
            self._active.append(adapter_name)
        self._warn_below_precision(adapter_name)

    def delete_adapter(self, adapter_name: str) -> None:
        """Detach one adapter and free what it kept; the others stay in force."""
        self._check_known(adapter_name)
        with self.disable_adapter():
            del self._adapters[adapter_name], self._scales[adapter_name]
            self._active = [name for name in self._active if name != adapter_name]
            for weight, edit in list(self._edits.items()):
                self._rebuild(
                    weight, {name: edit.of(edit.positions, name) for name in edit.members if name != adapter_name}
                )

    def set_adapter(self, adapter_names: str | list[str]) -> None:
        """Put these adapters in force, and only these."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        for name in names:
            self._check_known(name)
        self._active = [name for name in self._adapters if name in names]
        self._apply()

    def set_scale(self, scale: float, adapter_name: str | None = None) -> None:
        """Change the scale in place, from the saved originals; ``1.0`` is the base.

        Args:
            scale: any finite number; 0 prunes.
            adapter_name: which adapter; may be left out while one is loaded.

        Raises:
            SettingError: the scale is not finite, or it is not clear which adapter is meant.
        """
        check_scale(scale)
        if adapter_name is None:
            if len(self._adapters) != 1:
                raise SettingError(
                    f"{len(self._adapters)} adapters are attached ({', '.join(self._adapters)}); name one."
                )
            adapter_name = next(iter(self._adapters))
        self._check_known(adapter_name)
        self._scales[adapter_name] = scale
        self._apply()
        self._warn_below_precision(adapter_name)

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """The base, bit for bit, inside the block."""
        before, self._disabled = self._disabled, True
        self._apply()
        try:
            yield
        finally:
            self._disabled = before
            self._apply()

    def unload(self) -> PreTrainedModel:
        """Restore every byte of the base, let go of it, and return it."""
        self._disabled = True
        self._apply()
        return self._let_go()

    def merge_and_unload(self) -> PreTrainedModel:
        """Leave the edit in the weights, forget the originals, and return the plain transformers model."""
        return self._let_go()

    def save_pretrained(self, folder: Path | str, adapter_name: str = "default", overwrite: bool = False) -> None:
        """Save one adapter with its scale as it is now; the model's weights are not saved."""
        self._check_known(adapter_name)
        adapter = self._adapters[adapter_name].with_scale(self._scales[adapter_name])
        adapter.save_pretrained(folder, overwrite)

    def _let_go(self) -> PreTrainedModel:
        model = self._base
        _ATTACHED.discard(model)
        self._edits.clear()
        self._model = None
        return model

    def _check_known(self, adapter_name: str) -> None:
        if adapter_name not in self._adapters:
            raise SettingError(
                f"There is no adapter {adapter_name!r}; attached are {', '.join(self._adapters) or 'none'}."
            )

    def _add_positions(self, weight: str, adapter_name: str, positions: Tensor) -> None:
        held = {adapter_name: positions.to(self._base.get_parameter(weight).device)}
        edit = self._edits.get(weight)
        if edit is not None:
            held |= {name: edit.of(edit.positions, name) for name in edit.members}
        self._rebuild(weight, held)

    def _rebuild(self, weight: str, held: Mapping[str, Tensor]) -> None:
        """Save originals at the union of the adapters' positions; called while the base is restored."""
        if not held:
            self._edits.pop(weight, None)
            return
        members: dict[str, Tensor | None]
        if len(held) == 1:
            (name, union), *_ = held.items()
            members = {name: None}
        else:
            union = torch.unique(torch.cat(list(held.values())))
            members = {name: torch.searchsorted(union, positions) for name, positions in held.items()}
        originals = self._base.get_parameter(weight).detach().view(-1)[union]
        self._edits[weight] = _Edit(union, originals, members)

    @torch.no_grad()
    def _apply(self) -> None:
        """Bring every edited position to what the active adapters and their scales say."""
        scales = {} if self._disabled else {name: self._scales[name] for name in self._active}
        for name, edit in self._edits.items():
            parameter = self._base.get_parameter(name)
            if parameter.dtype != edit.originals.dtype:
                raise ModelError(
                    f"{name} was {edit.originals.dtype} when the adapter was attached and is {parameter.dtype} now; "
                    "change the dtype before attaching."
                )
            if parameter.device != edit.positions.device:
                edit = self._edits[name] = _moved(edit, parameter.device)
            parameter.view(-1).index_copy_(0, edit.positions, edit.values(scales))

    def _warn_below_precision(self, adapter_name: str) -> None:
        scale = self._scales[adapter_name]
        dtype = next((edit.originals.dtype for edit in self._edits.values()), torch.float32)
        if scale != 1 and abs(scale - 1) < torch.finfo(dtype).eps / 2:
            changed, held = 0, 0
            for edit in self._edits.values():
                if adapter_name in edit.members:
                    originals = edit.of(edit.originals, adapter_name)
                    changed += int((scaled(originals, scale) != originals).sum())
                    held += originals.numel()
            name = str(dtype).removeprefix("torch.")
            warnings.warn(
                f"Scale {scale} is closer to 1 than {name} can express: it changes {changed} of {held} masked weights; "
                "use a scale further from 1, or load the model in float32.",
                UserWarning,
                stacklevel=3,
            )


def _moved(edit: _Edit, device: torch.device) -> _Edit:
    members = {name: None if index is None else index.to(device) for name, index in edit.members.items()}
    return _Edit(edit.positions.to(device), edit.originals.to(device), members)


def _loaded(adapter: NeurosurgeryAdapter | Path | str, **where: Any) -> NeurosurgeryAdapter:
    return (
        adapter if isinstance(adapter, NeurosurgeryAdapter) else NeurosurgeryAdapter.from_pretrained(adapter, **where)
    )
