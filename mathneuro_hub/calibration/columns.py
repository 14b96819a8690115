"""Statistics of activation columns, sample by sample: what calibration spends its time on beside the forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 17  # elements in fp64 at a time: 1 MiB, which stays in a core's L2 cache
_ROWS = 255  # as many as a uint8 can count
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def sample_norms(x: Tensor, mask: Tensor) -> Tensor:
    """L2 norm of every column of every sample over its real tokens, in fp64; for the CPU.

    Through one small buffer: fresh memory for every product would cost more than the arithmetic.

    Args:
        x: [batch, tokens, in], any float dtype, right-padded.
        mask: int64 [batch, tokens], 1 for real tokens, on the CPU.

    Returns:
        fp64 [batch, in].
    """
    into = x.shape[-1]
    step = max(1, _CHUNK // into)
    buffer = torch.empty(step, into, dtype=torch.float64)
    squares: Tensor = torch.zeros(x.shape[0], into, dtype=torch.float64)
    for sample, length, total in zip(x, mask.sum(1).tolist(), squares, strict=True):
        for rows in sample[:length].split(step):
            total += buffer[: len(rows)].copy_(rows).square_().sum(0)
    return squares.sqrt_()


def sample_norms_plain(x: Tensor, mask: Tensor) -> Tensor:
    """What :func:`sample_norms` computes, in two operations for any device."""
    padding = (mask == 0).to(x.device)
    norms: Tensor = torch.linalg.vector_norm(x.masked_fill(padding[:, :, None], 0), dim=1, dtype=torch.float64)
    return norms


def count_positive(x: Tensor, mask: Tensor) -> Tensor:
    """Over how many real tokens of every sample each column is above 0.

    Floats above 0 are those whose bits, read as an integer, are above 0; that comparison is several times faster.

    Args:
        x: [batch, tokens, in], any float dtype, right-padded, no NaN.
        mask: int64 [batch, tokens], 1 for real tokens, on the CPU.

    Returns:
        int64 [batch, in] on the device of ``x``.
    """
    counts = torch.zeros(x.shape[0], x.shape[-1], dtype=torch.int64, device=x.device)
    for sample, length, total in zip(x.view(_BITS[x.dtype]), mask.sum(1).tolist(), counts, strict=True):
        for rows in sample[:length].split(_ROWS):
            total += (rows > 0).view(torch.uint8).sum(0, dtype=torch.uint8)
    return counts
