"""A mask: which entries of one weight, as compressed sparse columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mathneuro_hub.errors import SettingError
from mathneuro_hub.masks.arrays import nonzero, repeat, sort

# Positions fit int32. The largest weights of open models, 128256 x 16384, are just below.
LARGEST_NUMEL = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Mask:
    """Which entries of one weight a method holds.

    Compressed sparse columns with counts in place of pointers: masks are strongly skewed over the input columns, so
    this is how they are stored, compared and coded. Both tensors are on one device.

    Args:
        shape: (out, in) of the weight, both at least 1, and no more than 2**31 - 1 entries.
        counts: int32 [in], how many entries of each input column are held.
        rows: int32 [held], the row of each held entry: columns in order, strictly ascending within a column.

    Raises:
        SettingError: a shape, dtype or length that does not fit. The values of `counts` and `rows` are not read.
    """

    shape: tuple[int, int]
    counts: Tensor
    rows: Tensor

    def __post_init__(self) -> None:
        _check_shape(self.shape)
        if self.counts.dtype != torch.int32 or self.counts.shape != (self.shape[1],):
            raise SettingError(
                f"the counts of a mask of shape {list(self.shape)} must be int32 [{self.shape[1]}], "
                f"not {self.counts.dtype} {list(self.counts.shape)}."
            )
        if self.rows.dtype != torch.int32 or self.rows.ndim != 1:
            raise SettingError(
                f"the rows of a mask must be int32 [held], not {self.rows.dtype} {list(self.rows.shape)}."
            )

    @classmethod
    def empty(cls, shape: tuple[int, int], device: torch.device | str | None = None) -> Mask:
        """The mask that holds nothing of a weight of this shape."""
        _check_shape(shape)
        counts = torch.zeros(shape[1], dtype=torch.int32, device=device)
        return cls(shape, counts, counts.new_empty(0))

    @classmethod
    def from_dense(cls, dense: Tensor) -> Mask:
        """The mask of a bool tensor [out, in] (any strides), on its device.

        Raises:
            SettingError: not bool, or not of two dimensions of at least 1.
        """
        if dense.dtype != torch.bool or dense.ndim != 2:
            raise SettingError(f"a dense mask must be bool [out, in], not {dense.dtype} {list(dense.shape)}.")
        out, in_ = dense.shape
        _check_shape((out, in_))
        if dense.t().is_contiguous():
            return cls._from_keys((out, in_), nonzero(dense.t().reshape(-1)).to(torch.int32))
        return cls._from_keys((out, in_), sort(_transposed(nonzero(dense.reshape(-1)), in_, out)))

    @classmethod
    def from_flat(cls, shape: tuple[int, int], flat: Tensor) -> Mask:
        """The mask of row-major positions row * in + col, int64 [held], in any order, on their device.

        Raises:
            SettingError: a shape below 1, positions that are not int64 [held], one outside the weight, or one twice.
        """
        _check_shape(shape)
        out, in_ = shape
        if flat.dtype != torch.int64 or flat.ndim != 1:
            raise SettingError(f"the positions of a mask must be int64 [held], not {flat.dtype} {list(flat.shape)}.")
        if flat.numel() == 0:
            return cls.empty(shape, flat.device)
        low, high = (int(end) for end in torch.aminmax(flat))
        if low < 0 or high >= out * in_:
            raise SettingError(
                f"position {low if low < 0 else high} is outside a weight of shape {list(shape)}; "
                f"positions run from 0 to {out * in_ - 1}."
            )
        keys = sort(_transposed(flat, in_, out))
        twice = int((keys[1:] == keys[:-1]).sum())
        if twice:
            raise SettingError(f"{twice} of {flat.numel()} positions of a mask are repeated; give each once.")
        return cls._from_keys(shape, keys)

    @classmethod
    def _from_keys(cls, shape: tuple[int, int], keys: Tensor) -> Mask:
        """The mask of column-major positions col * out + row, int32 [held], ascending."""
        out, in_ = shape
        starts = torch.arange(in_, dtype=torch.int32, device=keys.device) * out
        first = torch.searchsorted(keys, starts, out_int32=True)
        counts = torch.diff(first, append=first.new_full((1,), keys.numel()))
        return cls(shape, counts, keys - repeat(starts, counts, keys.numel()))

    @property
    def held(self) -> int:
        """How many entries the mask holds."""
        return self.rows.numel()

    @property
    def numel(self) -> int:
        """How many entries the weight has."""
        return self.shape[0] * self.shape[1]

    @property
    def density(self) -> float:
        """Share of the weight's entries that the mask holds, 0 to 1."""
        return self.held / self.numel

    @property
    def device(self) -> torch.device:
        """Where the mask's tensors are."""
        return self.rows.device

    def columns(self) -> Tensor:
        """The input column of each held entry, int64 [held], ascending."""
        columns = torch.arange(self.shape[1], device=self.device)
        return repeat(columns, self.counts, self.held)

    def flat(self) -> Tensor:
        """Row-major position row * in + col of each held entry, int64 [held], in the mask's column order."""
        return self.rows.to(torch.int64).mul_(self.shape[1]).add_(self.columns())

    def dense(self) -> Tensor:
        """The mask as a bool tensor [out, in]."""
        dense = torch.zeros(self.numel, dtype=torch.bool, device=self.device)
        dense[self.flat()] = True
        return dense.view(self.shape)

    def to(self, device: torch.device | str) -> Mask:
        """The mask with its tensors on another device."""
        return Mask(self.shape, self.counts.to(device), self.rows.to(device))

    def __and__(self, other: Mask) -> Mask:
        """The entries that both hold."""
        return self._select(self._within(other))

    def __sub__(self, other: Mask) -> Mask:
        """The entries that this mask holds and the other does not."""
        return self._select(~self._within(other))

    def __or__(self, other: Mask) -> Mask:
        """The entries that either holds."""
        self._check_like(other)
        keys = sort(torch.cat([self._keys(), other._keys()]))
        first = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=first[1:])
        return Mask._from_keys(self.shape, keys[first])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return (
            self.shape == other.shape
            and self.held == other.held
            and torch.equal(self.counts.to(other.device), other.counts)
            and torch.equal(self.rows.to(other.device), other.rows)
        )

    __hash__ = None  # type: ignore[assignment]

    def _keys(self) -> Tensor:
        """Column-major position col * out + row of each held entry, int32 [held], ascending."""
        starts = torch.arange(self.shape[1], dtype=torch.int32, device=self.device) * self.shape[0]
        return repeat(starts, self.counts, self.held).add_(self.rows)

    def _check_like(self, other: Mask) -> None:
        if self.shape != other.shape:
            raise SettingError(
                f"masks of shapes {list(self.shape)} and {list(other.shape)} do not combine; "
                "they must belong to the same weight."
            )

    def _within(self, other: Mask) -> Tensor:
        """Whether the other mask holds each entry of this one, bool [held]."""
        self._check_like(other)
        bitmap = torch.zeros(self.numel, dtype=torch.bool, device=self.device)
        bitmap[other._keys()] = True
        return bitmap.index_select(0, self._keys())

    def _select(self, keep: Tensor) -> Mask:
        """The mask of the entries where `keep`, bool [held], is true."""
        places = nonzero(keep)
        ends = self.counts.cumsum(0)
        until = torch.searchsorted(places, ends, out_int32=True)
        return Mask(self.shape, torch.diff(until, prepend=until.new_zeros(1)), self.rows.index_select(0, places))


def _check_shape(shape: tuple[int, int]) -> None:
    if len(shape) != 2 or min(shape) < 1 or shape[0] * shape[1] > LARGEST_NUMEL:
        raise SettingError(
            f"a mask's shape must be two sizes [out, in] of at least 1 and no more than {LARGEST_NUMEL} entries, "
            f"not {list(shape)}."
        )


def _transposed(flat: Tensor, width: int, height: int) -> Tensor:
    """Positions row * width + col, int64, as positions col * height + row, int32."""
    rows = flat // width
    return ((flat - rows * width) * height + rows).to(torch.int32)
