"""Exact top-k: the fast path equals the plain one, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mathneuro_hub.errors import ModelError, SettingError
from mathneuro_hub.masks import keep_count, top_k, top_k_plain

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def assert_exact(weight: Tensor, norms: Tensor, counts: Sequence[int]) -> None:
    fast, plain = top_k(weight, norms, counts), top_k_plain(weight, norms, counts)
    for kept, expected, count in zip(fast, plain, counts, strict=True):
        assert kept.dtype == torch.bool
        assert kept.shape == weight.shape
        assert int(kept.sum()) == count
        assert torch.equal(kept, expected)
    assert len(fast) == len(counts)


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ratios(numel: int) -> list[int]:
    return [int(ratio * numel) for ratio in (0.05, 0.0001, 0.001, 0.15, 0.5, 0.99)]


def test_by_hand() -> None:
    weight = torch.tensor([[-3.0, 1.0, 0.0], [1.0, -4.0, 2.0]])
    norms = torch.tensor([1.0, 2.0, 1.5])
    # scores 3 2 0 / 1 8 3: of the two 3s the first wins
    kept = top_k(weight, norms, [2, 1, 5, 0])
    assert [dense.int().tolist() for dense in kept] == [
        [[1, 0, 0], [0, 1, 0]],
        [[0, 0, 0], [0, 1, 0]],
        [[1, 1, 0], [1, 1, 1]],
        [[0, 0, 0], [0, 0, 0]],
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_random_weights_large_enough_to_be_sampled(dtype: torch.dtype, transposed: bool, skew: float) -> None:
    weight = normal((600, 500), 0).mul(0.02).to(dtype)
    norms = normal((500,), 1).mul(skew).exp()
    if transposed:
        weight = weight.t().contiguous().t()
    assert_exact(weight, norms, [*ratios(weight.numel()), 0, 1, 2, weight.numel() - 1, weight.numel()])


def values(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    return [0.0, -0.0, 1.0, -1.0, 1.5, info.max, -info.max, info.tiny, info.tiny * info.eps, 3 * info.tiny * info.eps]


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(DTYPES[:3]), st.integers(1, 12), st.integers(1, 12))
def test_tied_zero_denormal_and_extreme_values(data: st.DataObject, dtype: torch.dtype, out: int, in_: int) -> None:
    numbers = st.lists(st.sampled_from(values(dtype)), min_size=out * in_, max_size=out * in_)
    weight = torch.tensor(data.draw(numbers), dtype=torch.float64).to(dtype).view(out, in_)
    scales = [0.0, 1.0, 1.5, 2**-149, 2**-130, 2**-126, 3e38, 1e30]
    norms = torch.tensor(data.draw(st.lists(st.sampled_from(scales), min_size=in_, max_size=in_)))
    counts = data.draw(st.lists(st.integers(0, out * in_), max_size=4))
    strides = data.draw(st.sampled_from(["contiguous", "transposed", "strided"]))
    if strides == "transposed":
        weight = weight.t().contiguous().t()
    elif strides == "strided":
        weight = weight.repeat_interleave(2, 1)[:, ::2]
    assert_exact(weight, norms, counts)


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        "constant",
        "constant columns",
        "few values",
        "all zero",
        "zero norms",
        "denormal",
        "denormal norms",
        "overflow",
        "rare",
    ],
)
def test_hard_cases_large_enough_to_be_sampled(case: str, dtype: torch.dtype, transposed: bool) -> None:
    shape = (300, 301)
    weight, norms = normal(shape, 2), normal(shape[1:], 3).exp()
    if case == "constant":
        weight, norms = torch.full(shape, 0.3), torch.full(shape[1:], 1.7)
    elif case == "constant columns":
        weight = torch.full(shape, -0.7)
    elif case == "few values":
        weight, norms = weight.round(), norms.round()
    elif case == "all zero":
        weight = torch.zeros(shape)
    elif case == "zero norms":
        norms = norms * (torch.arange(shape[1]) % 20 == 0)
    elif case == "denormal":
        weight = weight * torch.finfo(dtype).tiny
    elif case == "denormal norms":
        norms = norms * 2e-39
    elif case == "overflow":
        weight, norms = weight.clamp(-1, 1) * torch.finfo(dtype).max, norms * 1e30
    else:
        # what the sample never sees: one row far above, one far below the rest
        weight[17], weight[18] = 1000, 0
    weight = weight.to(dtype)
    if transposed:
        weight = weight.t().contiguous().t()
    assert_exact(weight, norms, [*ratios(weight.numel()), 1, 301, 300])


def test_a_sample_that_misleads_costs_time_only() -> None:
    weight = normal((400, 400), 4)
    # The positions that a fixed stride visits hold the least, so every guess from them is too low.
    weight.view(-1)[:: weight.numel() // 5000] = 0
    weight.view(-1)[:80000] *= 1e-3
    assert_exact(weight, torch.ones(400), ratios(weight.numel()))


def test_one_row_one_column_one_entry() -> None:
    for shape in ((1, 200000), (200000, 1), (1, 1)):
        for transposed in (False, True):
            weight = normal(shape[::-1], 5).t() if transposed else normal(shape, 5)
            numel = weight.numel()
            assert_exact(weight, normal(shape[1:], 6).exp(), [0, numel // 20, numel])


def test_the_same_from_one_and_from_several_threads() -> None:
    weight, norms = normal((900, 700), 7).to(torch.bfloat16), normal((700,), 8).exp()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = top_k(weight, norms, [1000, 50000])
        torch.set_num_threads(3)
        several = top_k(weight, norms, [1000, 50000])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, second) for first, second in zip(one, several, strict=True))


def test_a_parameter_that_requires_grad() -> None:
    weight = torch.nn.Parameter(normal((5, 4), 9))
    assert_exact(weight, torch.ones(4), [3])


@pytest.mark.parametrize("function", [top_k, top_k_plain])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(3, 4), (300, 400)])
def test_weights_that_are_not_finite_are_refused(function: object, bad: float, shape: tuple[int, int]) -> None:
    assert callable(function)
    for dtype in DTYPES:
        weight = normal(shape, 10).to(dtype)
        weight[-1, -1] = bad
        with pytest.raises(ModelError, match="the weight holds NaN"):
            function(weight, torch.ones(shape[1]), [1])


@pytest.mark.parametrize("function", [top_k, top_k_plain])
def test_settings_out_of_range_are_refused(function: object) -> None:
    assert callable(function)
    weight, norms = torch.ones(3, 4), torch.ones(4)
    for bad in (math.nan, math.inf, -1.0):
        with pytest.raises(SettingError, match="finite"):
            function(weight, torch.tensor([1.0, bad, 1.0, 1.0]), [1])
    for count in (-1, 13):
        with pytest.raises(SettingError, match=f"not {count}"):
            function(weight, norms, [1, count])
    for wrong in (torch.ones(3), torch.ones(4, 1), torch.ones(4, dtype=torch.float64)):
        with pytest.raises(SettingError, match="norms"):
            function(weight, wrong, [1])
    for odd in (torch.ones(4), torch.ones(3, 4, dtype=torch.int8), torch.ones(0, 4)):
        with pytest.raises(SettingError, match="weight must be float"):
            function(odd, norms, [0])


def test_keep_count() -> None:
    assert keep_count(0.05, 1000) == 50
    assert keep_count(0.0001, 9999) == 0
    assert keep_count(1, 7) == 7
    for bad in (0, -0.1, 1.0001, math.nan, math.inf):
        with pytest.raises(SettingError, match="keep ratio"):
            keep_count(bad, 100)
