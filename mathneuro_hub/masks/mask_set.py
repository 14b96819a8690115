"""A mask set: one mask per weight, and its algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from mathneuro_hub.errors import SettingError
from mathneuro_hub.masks.mask import Mask


class MaskSet(Mapping[str, Mask]):
    """One mask per covered weight, by the weight's name, in the order given.

    Sets combine entry by entry with ``|``, ``&`` and ``-``. Both sides must cover the same weights; the result keeps
    the left side's order.
    """

    def __init__(self, masks: Mapping[str, Mask]) -> None:
        self._masks = dict(masks)

    def __getitem__(self, name: str) -> Mask:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __repr__(self) -> str:
        return f"MaskSet({len(self)} weights, {self.held} of {self.numel} held)"

    @property
    def held(self) -> int:
        """How many entries the masks hold together."""
        return sum(mask.held for mask in self.values())

    @property
    def numel(self) -> int:
        """How many parameters the weights have together."""
        return sum(mask.numel for mask in self.values())

    @property
    def density(self) -> float:
        """Share of the covered parameters that the masks hold, 0 to 1 (0 for a set without weights)."""
        return self.held / max(self.numel, 1)

    def to(self, device: torch.device | str) -> MaskSet:
        """The set with every mask on another device."""
        return MaskSet({name: mask.to(device) for name, mask in self.items()})

    def __or__(self, other: MaskSet) -> MaskSet:
        return self._combine(other, Mask.__or__)

    def __and__(self, other: MaskSet) -> MaskSet:
        return self._combine(other, Mask.__and__)

    def __sub__(self, other: MaskSet) -> MaskSet:
        return self._combine(other, Mask.__sub__)

    def jaccard(self, other: MaskSet) -> float:
        """Entries that both sets hold, as a share of those that either holds (https://arxiv.org/abs/2606.18453).

        Two sets that hold nothing are equal: 1.

        Raises:
            SettingError: the sets do not cover the same weights.
        """
        both = (self & other).held
        return _jaccard(both, self.held, other.held)

    def chance_jaccard(self, other: MaskSet) -> float:
        """The Jaccard overlap that random masks with as many entries per weight would have.

        The expected number of common entries is the sum over the weights of a * b / numel.

        Raises:
            SettingError: the sets do not cover the same weights.
        """
        self._check(other)
        both = sum(mask.held * other[name].held / mask.numel for name, mask in self.items())
        return _jaccard(both, self.held, other.held)

    def by_layer(self) -> dict[str, MaskSet]:
        """The set of each layer: the first integer in the weight's name, or "none"."""
        return self._group(lambda name: next((part for part in name.split(".") if part.isdecimal()), "none"))

    def by_kind(self) -> dict[str, MaskSet]:
        """The set of each kind of weight: its module's own name, such as "up_proj"."""
        return self._group(lambda name: name.removesuffix(".weight").rpartition(".")[2])

    def _group(self, key: Callable[[str], str]) -> dict[str, MaskSet]:
        groups: dict[str, dict[str, Mask]] = {}
        for name, mask in self.items():
            groups.setdefault(key(name), {})[name] = mask
        return {group: MaskSet(masks) for group, masks in groups.items()}

    def _combine(self, other: MaskSet, operation: Callable[[Mask, Mask], Mask]) -> MaskSet:
        self._check(other)
        return MaskSet({name: operation(mask, other[name]) for name, mask in self.items()})

    def _check(self, other: MaskSet) -> None:
        for name in [*self, *other]:
            if name not in self or name not in other:
                raise SettingError(f"only one of two mask sets covers {name}; both must cover the same weights.")
            if self[name].shape != other[name].shape:
                raise SettingError(
                    f"{name} is {list(self[name].shape)} in one mask set and {list(other[name].shape)} in the other; "
                    "both must belong to the same base model."
                )


def _jaccard(both: float, first: int, second: int) -> float:
    either = first + second - both
    return both / either if either else 1.0
