"""A mask as a compact byte stream: per column, the Rice-coded gaps between its entries.

docs/format.md specifies it. Rice parameters follow from the counts by an exact integer form of the golden-ratio rule
of A. Kiely, "Selecting the Golomb Parameter in Rice Coding", IPN Progress Report 42-159 (2004),
https://ipnpr.jpl.nasa.gov/progress_report/42-159/159E.pdf, set for columns of finite height: the expected length is
within 1 % of the best parameter's for every count and height.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mathneuro_hub.errors import FormatError
from mathneuro_hub.masks.arrays import nonzero, pack_bits, repeat, segments, unpack_bits
from mathneuro_hub.masks.mask import LARGEST_NUMEL, Mask


def encode(mask: Mask) -> Tensor:
    """The stream of a mask, uint8 [bytes] on the mask's device. Equal masks have equal streams."""
    out, in_ = mask.shape
    counts, rows = mask.counts, mask.rows
    dense = counts > out // 2
    flagged = nonzero(dense).to(torch.int32)
    whole = flagged.numel()
    parts = [_varint(whole, rows)]
    if whole:
        parts += _rice(_gaps(flagged, flagged.new_zeros(1)), [(_parameter(whole, in_), whole)])
        counts, rows = _complement(counts, rows, dense, out)
    items = rows.numel()
    parts.append(_varint(items, rows))
    if items:
        parts += _rice(counts, [(_parameter(in_, in_ + items), in_)])
        order, groups = _column_order(counts, out)
        starts = _starts(counts)
        gaps = _gaps(rows, starts[counts > 0])
        if len(groups) > 1:
            gaps = segments(gaps, starts[order], counts[order], items)
        parts += _rice(gaps, groups)
    return torch.cat(parts)


def decode(stream: Tensor, shape: tuple[int, int], device: torch.device | str | None = None) -> Mask:
    """The mask of a stream that `encode` made of a mask of this shape.

    Every stream is either refused or the one stream of the mask returned. Memory is bounded by the stream and, where
    columns are held whole or nearly, by the shape.

    Args:
        stream: uint8 [bytes].
        shape: (out, in) of the weight.
        device: where to decode and return the mask; where the stream is by default.

    Raises:
        FormatError: the stream is damaged, or of another shape.
    """
    out, in_ = shape
    if min(shape) < 1 or out * in_ > LARGEST_NUMEL:
        raise FormatError(f"no weight has shape {list(shape)}; take the file from its source again.")
    if stream.dtype != torch.uint8 or stream.ndim != 1:
        raise FormatError(f"a mask stream must be uint8 [bytes], not {stream.dtype} {list(stream.shape)}.")
    reader = _Reader(stream if device is None else stream.to(device))
    counts = torch.zeros(in_, dtype=torch.int32, device=reader.data.device)
    rows = counts.new_empty(0)
    dense = counts.new_zeros(in_, dtype=torch.bool)
    whole = reader.varint("number of dense columns", in_)
    if whole:
        flagged = reader.rice([(_parameter(whole, in_), whole)], in_ - whole, in_ - whole).add_(1).cumsum(0) - 1
        dense[flagged] = True
    items = reader.varint("number of items", out * in_ // 2)
    if items:
        counts = reader.rice([(_parameter(in_, in_ + items), in_)], out // 2, items)
        if counts.sum(dtype=torch.int64) != items:
            raise _damaged("its counts do not add up")
        order, groups = _column_order(counts, out)
        rows = _rows(reader.rice(groups, out - 1, out * in_ - items), counts, order, out, moved=len(groups) > 1)
    reader.finish()
    if whole:
        if counts[dense].max() > (out - 1) // 2:
            raise _damaged("a column is called dense and is not")
        counts, rows = _complement(counts, rows, dense, out)
    return Mask((out, in_), counts, rows)


def _parameter(count: int, size: int) -> int:
    """The Rice parameter for the gaps of `count` items among `size` places."""
    return (123 * (2 * size + 1 - count) // (512 * (count + 1))).bit_length()


def _column_order(counts: Tensor, out: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """In which order columns are coded, int64 [in], and as (parameter, items) the groups this makes of their items.

    The largest parameters come first, so that the items with a remainder bit b are always the first so many.
    """
    wide = counts.to(torch.int64)
    ratio = 123 * (2 * out + 1 - wide) // (512 * (wide + 1))
    # The exponent of a float64 is the bit length of the integer that it is.
    parameters = torch.frexp(ratio.to(torch.float64)).exponent.to(torch.int64)
    items = wide.new_zeros(64).index_add_(0, parameters, wide).tolist()
    groups = [(parameter, size) for parameter, size in enumerate(items) if size]
    return parameters.sort(descending=True, stable=True).indices, groups[::-1]


def _starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0, dtype=torch.int32) - counts


def _gaps(rows: Tensor, firsts: Tensor) -> Tensor:
    """How many places are skipped before each row since the one before it, or since the top for the first ones."""
    gaps = torch.empty_like(rows)
    torch.sub(rows[1:], rows[:-1], out=gaps[1:])
    gaps -= 1
    gaps[firsts] = rows[firsts]
    return gaps


def _rows(gaps: Tensor, counts: Tensor, order: Tensor, out: int, moved: bool) -> Tensor:
    """Rows of the items in natural column order, int32, from their gaps in coded order."""
    ends = (gaps + 1).cumsum(0, dtype=torch.int32)
    starts = torch.empty_like(counts)
    starts[order] = _starts(counts[order])
    filled = counts > 0
    first, last = starts[filled], (starts + counts)[filled] - 1
    before = ends[first] - gaps[first]
    if (ends[last] - before).max() >= out:
        raise _damaged("a row is outside the weight")
    if moved:
        ends = segments(ends, starts, counts, gaps.numel())
    return ends.sub_(repeat(before, counts[filled], gaps.numel()))


def _complement(counts: Tensor, rows: Tensor, dense: Tensor, out: int) -> tuple[Tensor, Tensor]:
    """Counts and rows with the dense columns' rows replaced by the rows that they lack."""
    after = torch.where(dense, out - counts, counts)
    starts = _starts(counts)
    tops = torch.arange(int(dense.sum()), dtype=torch.int32, device=rows.device) * out
    lacking = torch.ones(tops.numel() * out, dtype=torch.bool, device=rows.device)
    had = int(counts[dense].sum(dtype=torch.int64))
    places = segments(rows, starts[dense], counts[dense], had).add_(repeat(tops, counts[dense], had))
    lacking[places] = False
    found = nonzero(lacking).to(torch.int32)
    found -= repeat(tops, after[dense], found.numel())
    starts[dense] = _starts(after[dense]) + rows.numel()
    return after, segments(torch.cat([rows, found]), starts, after, rows.numel() - had + found.numel())


def _rice(values: Tensor, groups: list[tuple[int, int]]) -> list[Tensor]:
    """A section of non-negative int32: the length of the unary part in bytes, the unary part, the remainder bits.

    `groups` are (parameter, values) by descending parameter, and cover the values in their order.
    """
    quotients = values.clone()
    start = 0
    for parameter, size in groups:
        quotients[start : start + size] >>= parameter
        start += size
    stops = quotients.add_(1).cumsum(0)
    unary = torch.zeros(int(stops[-1]), dtype=torch.bool, device=values.device)
    unary[stops.sub_(1)] = True
    coded = pack_bits(unary)
    sizes = _planes(groups)
    planes = torch.empty(sum(sizes), dtype=torch.uint8, device=values.device)
    start = 0
    for bit, size in enumerate(sizes):
        if bit % 8 == 0:
            octets = (values[:size] >> bit).to(torch.uint8)
        torch.bitwise_and(octets[:size] >> bit % 8, 1, out=planes[start : start + size])
        start += size
    return [_varint(coded.numel(), values), coded, pack_bits(planes)]


def _planes(groups: list[tuple[int, int]]) -> list[int]:
    """For each remainder bit, how many values have it: the first so many, as parameters descend."""
    return [sum(size for parameter, size in groups if parameter > bit) for bit in range(groups[0][0])]


def _varint(value: int, like: Tensor) -> Tensor:
    """An unsigned LEB128 integer, uint8 [bytes]."""
    data = []
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return torch.tensor([*data, value], dtype=torch.uint8, device=like.device)


@dataclass
class _Reader:
    """Takes a stream apart from its start."""

    data: Tensor
    at: int = 0

    def take(self, size: int) -> Tensor:
        if size > self.data.numel() - self.at:
            raise _damaged(f"it ends after {self.data.numel()} bytes")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, what: str, limit: int) -> int:
        value = 0
        for place, byte in enumerate(self.data[self.at : self.at + 9].tolist()):
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                self.at += place + 1
                if value > limit or (place and not byte):
                    raise _damaged(f"its {what} is {value}, of at most {limit}")
                return int(value)
        raise _damaged(f"its {what} does not end")

    def rice(self, groups: list[tuple[int, int]], limit: int, total: int) -> Tensor:
        """The integers of a section, int32: each from 0 to limit, and no more than total together."""
        items = sum(size for _, size in groups)
        coded = self.take(self.varint("unary length", 2**28))
        stops = nonzero(unpack_bits(coded))
        if stops.numel() != items or int(stops[-1]) // 8 != coded.numel() - 1:
            raise _damaged(f"it codes {stops.numel()} integers where {items} are due")
        values = stops.to(torch.int32)
        values[1:] = torch.diff(values).sub_(1)
        sizes = _planes(groups)
        bits = unpack_bits(self.take((sum(sizes) + 7) // 8))
        if bits[sum(sizes) :].any():
            raise _damaged("a padding bit is set")
        planes = bits.view(torch.uint8)
        start = 0
        for parameter, size in groups:
            group = values[start : start + size]
            if group.max() > limit >> parameter:
                raise _damaged("an integer is too large")
            group <<= parameter
            start += size
        start = 0
        for low in range(0, len(sizes), 8):
            octets = torch.zeros(sizes[low], dtype=torch.uint8, device=values.device)
            for bit, size in enumerate(sizes[low : low + 8]):
                octets[:size] |= planes[start : start + size] << bit
                start += size
            values[: sizes[low]] += octets.to(torch.int32) << low
        if values.max() > limit or values.sum(dtype=torch.int64) > total:
            raise _damaged("an integer is too large")
        return values

    def finish(self) -> None:
        if self.at != self.data.numel():
            raise _damaged(f"it should end after {self.at} bytes and has {self.data.numel()}")


def _damaged(reason: str) -> FormatError:
    return FormatError(f"a mask stream is damaged: {reason}; take the file from its source again.")
