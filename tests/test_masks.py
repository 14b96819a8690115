"""Masks and mask sets, against Python sets."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mathneuro_hub.errors import SettingError
from mathneuro_hub.masks import Mask, MaskSet

Shape = tuple[int, int]
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def mask_of(shape: Shape, places: set[int]) -> Mask:
    return Mask.from_flat(shape, torch.tensor(sorted(places, reverse=True), dtype=torch.int64))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Shape, set[int], set[int]]:
    shape = draw(SHAPES)
    places = st.sets(st.integers(0, shape[0] * shape[1] - 1))
    return shape, draw(places), draw(places)


@given(pairs())
def test_every_view_of_a_mask_agrees(drawn: tuple[Shape, set[int], set[int]]) -> None:
    shape, places, _ = drawn
    mask = mask_of(shape, places)
    assert (mask.held, mask.numel) == (len(places), shape[0] * shape[1])
    assert mask.density == len(places) / mask.numel
    in_column_order = sorted(places, key=lambda place: (place % shape[1], place))
    assert mask.flat().tolist() == in_column_order
    assert mask.columns().tolist() == [place % shape[1] for place in in_column_order]
    assert mask.rows.tolist() == [place // shape[1] for place in in_column_order]
    dense = mask.dense()
    assert dense.shape == shape
    assert set(dense.flatten().nonzero().flatten().tolist()) == places
    assert Mask.from_dense(dense) == mask
    assert Mask.from_dense(dense.t().contiguous().t()) == mask
    assert (mask.flat().dtype, mask.columns().dtype) == (torch.int64, torch.int64)
    assert (mask.rows.dtype, mask.counts.dtype) == (torch.int32, torch.int32)
    assert mask.to("cpu") == mask


@settings(max_examples=200)
@given(pairs(), st.sampled_from([operator.or_, operator.and_, operator.sub]))
def test_algebra_is_that_of_sets(drawn: tuple[Shape, set[int], set[int]], operation: Callable[[Any, Any], Any]) -> None:
    shape, first, second = drawn
    assert operation(mask_of(shape, first), mask_of(shape, second)) == mask_of(shape, operation(first, second))


def test_algebra_on_a_large_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(700, 300, generator=generator) < 0.1 for _ in range(2))
    left, right = Mask.from_dense(first), Mask.from_dense(second)
    assert left & right == Mask.from_dense(first & second)
    assert left | right == Mask.from_dense(first | second)
    assert left - right == Mask.from_dense(first & ~second)


def test_equality_is_by_value_and_masks_are_unhashable() -> None:
    mask = mask_of((3, 4), {1, 5})
    assert mask == mask_of((3, 4), {5, 1})
    assert mask != mask_of((4, 3), {1, 5})
    assert mask != mask_of((3, 4), {1, 6})
    assert mask != mask_of((3, 4), {1})
    assert mask != "mask"
    assert Mask.empty((3, 4)) == mask_of((3, 4), set())
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)


def test_masks_of_other_shapes_do_not_combine() -> None:
    for operation in (operator.or_, operator.and_, operator.sub):
        with pytest.raises(SettingError, match=r"\[3, 4\] and \[4, 3\]"):
            operation(Mask.empty((3, 4)), Mask.empty((4, 3)))


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([0, 12], "position 12 is outside"),
        ([-1, 0], "position -1 is outside"),
        ([3, 1, 3, 3], "2 of 4 positions"),
    ],
)
def test_positions_out_of_range_or_repeated_are_refused(places: list[int], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        Mask.from_flat((3, 4), torch.tensor(places))


def test_wrong_types_and_shapes_are_refused() -> None:
    with pytest.raises(SettingError, match="int64"):
        Mask.from_flat((3, 4), torch.tensor([1], dtype=torch.int32))
    with pytest.raises(SettingError, match="int64"):
        Mask.from_flat((3, 4), torch.tensor([[1]]))
    with pytest.raises(SettingError, match="bool"):
        Mask.from_dense(torch.ones(3, 4))
    with pytest.raises(SettingError, match="bool"):
        Mask.from_dense(torch.ones(3, dtype=torch.bool))
    for shape in ((0, 4), (4, 0), (2**16, 2**16)):
        with pytest.raises(SettingError, match="shape"):
            Mask.empty(shape)
    counts, rows = torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    with pytest.raises(SettingError, match="counts"):
        Mask((3, 5), counts, rows)
    with pytest.raises(SettingError, match="counts"):
        Mask((3, 4), counts.long(), rows)
    with pytest.raises(SettingError, match="rows"):
        Mask((3, 4), counts, rows.long())


def test_positions_beyond_16_bits_in_tall_and_wide_weights() -> None:
    for shape in ((1, 2**21), (2**21, 1), (2**11, 2**19)):
        numel = shape[0] * shape[1]
        mask = mask_of(shape, {0, numel // 2, numel - 1})
        assert sorted(mask.flat().tolist()) == [0, numel // 2, numel - 1]


def sets_of(shapes: dict[str, Shape], seed: int, density: float) -> MaskSet:
    generator = torch.Generator().manual_seed(seed)
    return MaskSet(
        {name: Mask.from_dense(torch.rand(shape, generator=generator) < density) for name, shape in shapes.items()}
    )


SHAPES_BY_NAME = {
    "model.layers.3.mlp.up_proj.weight": (40, 30),
    "model.layers.10.mlp.up_proj.weight": (40, 30),
    "model.layers.3.mlp.down_proj.weight": (30, 40),
    "model.layers.3.mlp.experts.7.down_proj.weight": (10, 10),
    "lm_head.weight": (50, 30),
}


def test_a_set_is_a_mapping_that_keeps_its_order() -> None:
    masks = sets_of(SHAPES_BY_NAME, 0, 0.2)
    assert list(masks) == list(SHAPES_BY_NAME)
    assert len(masks) == 5
    assert masks.numel == 40 * 30 * 3 + 100 + 1500
    assert masks.held == sum(mask.held for mask in masks.values())
    assert masks.density == masks.held / masks.numel
    assert masks == sets_of(SHAPES_BY_NAME, 0, 0.2)
    assert masks != sets_of(SHAPES_BY_NAME, 1, 0.2)
    assert masks.to("cpu") == masks
    assert (MaskSet({}).held, MaskSet({}).density) == (0, 0.0)


def test_sets_combine_weight_by_weight() -> None:
    first, second = sets_of(SHAPES_BY_NAME, 0, 0.2), sets_of(SHAPES_BY_NAME, 1, 0.3)
    reordered = MaskSet({name: second[name] for name in reversed(list(second))})
    for operation in (operator.or_, operator.and_, operator.sub):
        combined = operation(first, reordered)
        assert list(combined) == list(first)
        assert all(combined[name] == operation(first[name], second[name]) for name in first)


def test_sets_over_other_weights_do_not_combine() -> None:
    masks = sets_of(SHAPES_BY_NAME, 0, 0.2)
    fewer = MaskSet({name: mask for name, mask in masks.items() if name != "lm_head.weight"})
    other = MaskSet({**masks, "lm_head.weight": Mask.empty((50, 31))})
    for left, right, reason in [
        (masks, fewer, "covers lm_head.weight"),
        (fewer, masks, "covers lm_head.weight"),
        (masks, other, r"lm_head.weight is \[50, 30\] in one mask set and \[50, 31\]"),
    ]:
        for operation in (operator.or_, operator.and_, operator.sub, MaskSet.jaccard, MaskSet.chance_jaccard):
            with pytest.raises(SettingError, match=reason):
                operation(left, right)


def test_jaccard() -> None:
    shapes = {"a": (1, 4), "b": (1, 6)}
    first = MaskSet({"a": mask_of((1, 4), {0, 1}), "b": mask_of((1, 6), {0, 1, 2})})
    second = MaskSet({"a": mask_of((1, 4), {1, 2}), "b": mask_of((1, 6), {1, 2, 3, 4})})
    assert first.jaccard(second) == second.jaccard(first) == 3 / 8
    assert first.jaccard(first) == 1
    nothing = sets_of(shapes, 0, 0.0)
    assert (nothing.jaccard(nothing), nothing.chance_jaccard(nothing), first.jaccard(nothing)) == (1, 1, 0)
    expected = 2 * 2 / 4 + 3 * 4 / 6
    assert first.chance_jaccard(second) == expected / (5 + 6 - expected)


def test_chance_jaccard_is_what_random_masks_have() -> None:
    shapes = {"a": (200, 300), "b": (300, 100)}
    first, second = sets_of(shapes, 0, 0.3), sets_of(shapes, 1, 0.2)
    assert first.chance_jaccard(second) == pytest.approx(first.jaccard(second), abs=0.005)


def test_distribution_over_layers_and_kinds() -> None:
    masks = sets_of(SHAPES_BY_NAME, 0, 0.2)
    held = [mask.held for mask in masks.values()]
    assert {name: (part.held, part.numel) for name, part in masks.by_layer().items()} == {
        "3": (held[0] + held[2] + held[3], 1200 + 1200 + 100),
        "10": (held[1], 1200),
        "none": (held[4], 1500),
    }
    assert {name: (part.held, part.numel) for name, part in masks.by_kind().items()} == {
        "up_proj": (held[0] + held[1], 2400),
        "down_proj": (held[2] + held[3], 1300),
        "lm_head": (held[4], 1500),
    }
