"""Exact top-k of importance scores S = |W| * norms, one fp32 multiplication each.

Within one input column the score grows with |W|, so "above a score" is "above a value of |W|" there, and that is a
comparison of integers: float bits without their sign order like the floats. One pass over the weight's bits splits it
into what is surely kept, what is surely not, and a small rest, by two limits per column that are guessed from a
sample. Only the rest is scored and selected from. The guess is verified, so a bad one costs time and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mathneuro_hub.errors import ModelError, SettingError

_SAMPLES = 65536
# Entries per chunk: its bits and the bools made of them stay in a core's L2 cache.
_CHUNK = 2**18
# How far the bracket reaches to both sides of the sample's quantile, in standard deviations; the last takes it all.
_MARGINS = (4.0, 16.0, math.inf)

_Bits = npt.NDArray[Any]  # int16 or int32
_Floats = npt.NDArray[np.float32]
_Bools = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.int64]


def keep_count(keep_ratio: float, numel: int) -> int:
    """How many entries a keep ratio keeps of a weight: int(keep_ratio * numel).

    Raises:
        SettingError: the ratio is not above 0 and at most 1.
    """
    if not 0 < keep_ratio <= 1:
        raise SettingError(f"the keep ratio must be above 0 and at most 1, not {keep_ratio}.")
    return int(keep_ratio * numel)


def top_k(weight: Tensor, norms: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """For each count, the entries of a weight with the highest scores |W| * norms.

    Exact, and the same on every run and device: a score is one fp32 multiplication, and of equal scores the one with
    the lowest row-major position wins. Reads the weight once for all counts, in its stored order: a transposed view
    is not copied.

    Args:
        weight: [out, in], any float dtype, any strides, finite.
        norms: float32 [in], the activation norms, finite and at least 0, on the weight's device.
        counts: how many entries to keep, each from 0 to out * in, in any order.

    Returns:
        For each count, bool [out, in] on the weight's device with that many entries true, stored as the weight is.

    Raises:
        SettingError: a shape, dtype, norm or count outside what it may be.
        ModelError: the weight holds NaN or infinite values.
    """
    _check(weight, norms, counts)
    if weight.device.type != "cpu":
        return top_k_plain(weight, norms, counts)
    weight = weight.detach()
    if weight.dtype not in _FORMATS:
        weight = weight.to(torch.float32)
    transposed = not weight.is_contiguous() and weight.t().is_contiguous()
    stored = _Stored.of(weight.t() if transposed else weight.contiguous(), norms, transposed)
    return [dense.t() if transposed else dense for dense in stored.top_k(counts)]


def top_k_plain(weight: Tensor, norms: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """What `top_k` computes, computed plainly: the whole score matrix in fp32, sorted stably."""
    _check(weight, norms, counts)
    scores = weight.detach().to(torch.float32).abs()
    if not scores.isfinite().all():
        raise _not_finite()
    order = (scores * norms).flatten().sort(descending=True, stable=True).indices
    kept = []
    for count in counts:
        dense = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
        dense[order[:count]] = True
        kept.append(dense.view(weight.shape))
    return kept


def _check(weight: Tensor, norms: Tensor, counts: Sequence[int]) -> None:
    if weight.ndim != 2 or not weight.is_floating_point() or weight.numel() == 0:
        raise SettingError(f"a weight must be float [out, in], not {weight.dtype} {list(weight.shape)}.")
    if norms.dtype != torch.float32 or norms.shape != weight.shape[1:]:
        raise SettingError(
            f"the norms of a weight of shape {list(weight.shape)} must be float32 [{weight.shape[1]}], "
            f"not {norms.dtype} {list(norms.shape)}."
        )
    if not (norms.isfinite() & (norms >= 0)).all():
        raise SettingError("activation norms must be finite and at least 0; calibrate again.")
    for count in counts:
        if not 0 <= count <= weight.numel():
            raise SettingError(f"the number of entries to keep must be from 0 to {weight.numel()}, not {count}.")


def _not_finite() -> ModelError:
    return ModelError("the weight holds NaN or infinite values, so its scores have no order.")


@dataclass(frozen=True)
class _Format:
    """How the bits of a float dtype, sign cleared, become fp32 and back."""

    bits: torch.dtype
    largest: int
    """Bits of the largest finite value; infinity and NaN are above."""
    to_float: Callable[[_Bits], _Floats]
    from_float: Callable[[_Floats], _Bits]
    """Rounds down; what does not fit comes out above `largest`."""


def _f16_floor(values: _Floats) -> _Bits:
    near = values.astype(np.float16)
    return np.asarray(near.view(np.int16) - (near.astype(np.float32) > values))


_FORMATS = {
    torch.bfloat16: _Format(
        torch.int16,
        0x7F7F,
        lambda bits: (bits.astype(np.int32) << 16).view(np.float32),
        lambda values: (values.view(np.int32) >> 16).astype(np.int16),
    ),
    torch.float16: _Format(torch.int16, 0x7BFF, lambda bits: bits.view(np.float16).astype(np.float32), _f16_floor),
    torch.float32: _Format(
        torch.int32, 0x7F7FFFFF, lambda bits: bits.view(np.float32), lambda values: values.view(np.int32)
    ),
}


@dataclass(frozen=True)
class _Bracket:
    """Per column, the bits of |W| up to which an entry is below, and those over which it is above."""

    low: _Bits
    high: _Bits


@dataclass(frozen=True)
class _Inside:
    """What the pass found in a bracket: how many entries above, and stored position and score of each one inside."""

    above: int
    at: _Positions
    scores: _Floats

    @classmethod
    def joined(cls, parts: Sequence[_Inside]) -> _Inside:
        return cls(
            sum(part.above for part in parts),
            np.concatenate([part.at for part in parts]),
            np.concatenate([part.scores for part in parts]),
        )


@dataclass(frozen=True)
class _Stored:
    """A weight in its stored order, [rows, width], and the sorted scores of a sample of it."""

    bits: _Bits
    norms: _Floats
    """Broadcasts over `bits`: [1, width], or [rows, 1] where the weight is stored transposed."""
    transposed: bool
    form: _Format
    sample: _Floats

    @classmethod
    def of(cls, stored: Tensor, norms: Tensor, transposed: bool) -> _Stored:
        form = _FORMATS[stored.dtype]
        bits = stored.view(form.bits).numpy()
        column = norms.numpy().reshape((-1, 1) if transposed else (1, -1))
        plain = cls(bits, column, transposed, form, np.empty(0, np.float32))
        samples = min(_SAMPLES, bits.size // 32)
        if bits.size <= _SAMPLES:
            return plain
        # A fixed stride, prime to the width, visits all columns alike.
        stride = bits.size // samples
        while math.gcd(stride, bits.shape[1]) > 1:
            stride -= 1
        at = np.arange(0, samples * stride, stride)
        scores = plain.scores(bits.reshape(-1)[at] & np.iinfo(bits.dtype).max, at)
        return cls(bits, column, transposed, form, np.sort(scores))

    def top_k(self, counts: Sequence[int]) -> list[Tensor]:
        """The kept entries for each count, bool [rows, width]."""
        kept = [torch.zeros(self.bits.shape, dtype=torch.bool) for _ in counts]
        todo = [i for i, count in enumerate(counts) if count]
        for margin in _MARGINS:
            brackets = [self.bracket(counts[i], margin) for i in todo]
            found = self.split(brackets, [kept[i].numpy() for i in todo])
            todo = [
                i
                for i, bracket, inside in zip(todo, brackets, found, strict=True)
                if not self.settle(counts[i], bracket, inside, kept[i].numpy())
            ]
            if not todo:
                break
        return kept

    def scores(self, magnitude: _Bits, at: _Positions) -> _Floats:
        """Scores of entries of these bits at these stored positions."""
        width = self.bits.shape[1]
        norms = self.norms.reshape(-1)[at // width if self.transposed else at % width]
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(self.form.to_float(magnitude) * norms)

    def bracket(self, count: int, margin: float) -> _Bracket:
        """A guess of two scores with the one that decides between them, as limits on |W|."""
        samples = self.sample.size
        share = count / self.bits.size
        reach = margin * (math.sqrt(samples * share * (1 - share)) + 1) if samples else math.inf
        low, high = samples * (1 - share) - reach, samples * (1 - share) + reach
        return _Bracket(
            low=self.limit(self.sample[int(low)] * np.float32(1 - 2**-20)) if low >= 0 else self.full(-1),
            high=self.limit(self.sample[int(high)] * np.float32(1 + 2**-20))
            if high < samples
            else self.full(self.form.largest),
        )

    def limit(self, score: np.float32) -> _Bits:
        """Per column, bits of the |W| that about reaches this score."""
        if score == 0:
            return self.full(-1)
        with np.errstate(all="ignore"):
            return np.asarray(np.minimum(self.form.from_float(score / self.norms), self.form.largest))

    def full(self, bits: int) -> _Bits:
        return np.full(self.norms.shape, bits, self.bits.dtype)

    def split(self, brackets: Sequence[_Bracket], kept: Sequence[_Bools]) -> list[_Inside]:
        """The one pass over the weight: writes which entries are above each bracket, returns what is inside.

        Raises:
            ModelError: the weight is not finite everywhere.
        """
        rows, width = self.bits.shape
        lows = [np.broadcast_to(bracket.low, self.bits.shape) for bracket in brackets]
        highs = [np.broadcast_to(bracket.high, self.bits.shape) for bracket in brackets]
        step = max(_CHUNK // width, 1)
        threads = torch.get_num_threads()
        share = step * -(-rows // (step * threads * 4))

        def split_share(begin: int) -> list[list[_Inside]]:
            magnitudes = np.empty((min(step, rows), width), self.bits.dtype)
            insides = np.empty(magnitudes.shape, np.bool_)
            found: list[list[_Inside]] = [[] for _ in brackets]
            for start in range(begin, min(begin + share, rows), step):
                chunk = slice(start, start + step)
                size = self.bits[chunk].shape[0]
                magnitude = np.bitwise_and(self.bits[chunk], np.iinfo(self.bits.dtype).max, out=magnitudes[:size])
                if magnitude.max() > self.form.largest:
                    raise _not_finite()
                for low, high, dense, parts in zip(lows, highs, kept, found, strict=True):
                    above = np.greater(magnitude, high[chunk], out=dense[chunk])
                    inside = np.greater(magnitude, low[chunk], out=insides[:size])
                    inside ^= above
                    at = np.flatnonzero(inside)
                    scores = self.scores(magnitude.reshape(-1)[at], at + start * width)
                    parts.append(_Inside(int(np.count_nonzero(above)), at + start * width, scores))
            return found

        with ThreadPoolExecutor(threads) as pool:
            shares = list(pool.map(split_share, range(0, rows, share)))
        return [
            _Inside.joined([part for parts in per_share for part in parts]) for per_share in zip(*shares, strict=True)
        ]

    def settle(self, count: int, bracket: _Bracket, inside: _Inside, kept: _Bools) -> bool:
        """Adds the entries that are kept from inside; false where the bracket does not hold the deciding score."""
        need = count - inside.above
        if not 0 < need <= inside.at.size:
            return False
        place = inside.at.size - need
        decides = np.partition(inside.scores, place)[place]
        with np.errstate(over="ignore", under="ignore"):
            below = self.form.to_float(np.maximum(bracket.low, 0)) * self.norms
            above = self.form.to_float(np.minimum(bracket.high, self.form.largest - 1) + 1) * self.norms
        if (below[bracket.low >= 0] >= decides).any() or (above[bracket.high < self.form.largest] <= decides).any():
            return False
        sure = inside.at[inside.scores > decides]
        tied = inside.at[inside.scores == decides]
        rows, width = self.bits.shape
        if self.transposed:
            tied = tied[np.argsort(tied % width * rows + tied // width)]
        kept.reshape(-1)[np.concatenate([sure, tied[: need - sure.size]])] = True
        return True
