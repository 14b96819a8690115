"""Array operations that torch lacks, or in which NumPy is several times faster on a CPU. All tensors are 1-D."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def nonzero(bools: Tensor) -> Tensor:
    """Positions of what is true, int64, ascending."""
    if bools.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(bools.numpy()))
    return bools.nonzero().squeeze(1)


def sort(values: Tensor) -> Tensor:
    """The values in ascending order."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy()))
    return values.sort().values


def repeat(values: Tensor, counts: Tensor, size: int) -> Tensor:
    """Each value as often as its count says; the counts sum up to size."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))
    return torch.repeat_interleave(values, counts, output_size=size)


def segments(values: Tensor, starts: Tensor, counts: Tensor, size: int) -> Tensor:
    """Segments of the values, joined: `counts` of them from each of `starts`. All int32; the counts sum up to size."""
    shifts = starts - (counts.cumsum(0, dtype=torch.int32) - counts)
    places = torch.arange(size, dtype=torch.int32, device=values.device)
    return values.index_select(0, places.add_(repeat(shifts, counts, size)))


def pack_bits(bits: Tensor) -> Tensor:
    """Bits, bool [n] or uint8 of 0 and 1, as bytes, uint8 [ceil(n / 8)]: lowest bit first, padded with 0."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little"))
    padded = torch.nn.functional.pad(bits.view(torch.uint8), (0, -bits.numel() % 8)).view(-1, 8)
    return (padded << _places(bits)).sum(1, dtype=torch.uint8)


def unpack_bits(data: Tensor) -> Tensor:
    """Bytes, uint8 [n], as bits, bool [8 * n]: lowest bit first."""
    if data.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(data.numpy(), bitorder="little").view(np.bool_))
    return ((data.unsqueeze(1) >> _places(data)) & 1).view(-1).to(torch.bool)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
