"""The mask codec and file: exact, canonical, compact, and never trusting."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from mathneuro_hub.errors import FormatError, OutputError, SettingError
from mathneuro_hub.masks import Mask, MaskSet, decode, encode, load_masks, save_masks

# The specification, written as a loop.


def plain_parameter(count: int, size: int) -> int:
    return (123 * (2 * size + 1 - count) // (512 * (count + 1))).bit_length()


def plain_varint(value: int) -> bytes:
    data = []
    while value > 127:
        data.append(value % 128 + 128)
        value //= 128
    return bytes([*data, value])


def plain_bits(bits: list[int]) -> bytes:
    data = bytearray((len(bits) + 7) // 8)
    for place, bit in enumerate(bits):
        data[place // 8] |= bit << place % 8
    return bytes(data)


def plain_section(items: list[tuple[int, int]]) -> bytes:
    """(value, parameter) pairs, as a unary part and remainder bits."""
    unary: list[int] = []
    for value, parameter in items:
        unary += [0] * (value >> parameter) + [1]
    remainders = []
    for bit in range(max(parameter for _, parameter in items)):
        remainders += [value >> bit & 1 for value, parameter in items if parameter > bit]
    return plain_varint(len(plain_bits(unary))) + plain_bits(unary) + plain_bits(remainders)


def plain_gaps(places: list[int]) -> list[int]:
    return [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]


def plain_encode(dense: list[list[bool]]) -> bytes:
    """The stream of a mask given row by row."""
    out, in_ = len(dense), len(dense[0])
    columns = [[row for row in range(out) if dense[row][col]] for col in range(in_)]
    flagged = [col for col in range(in_) if 2 * len(columns[col]) > out]
    for col in flagged:
        columns[col] = [row for row in range(out) if not dense[row][col]]
    items = sum(len(column) for column in columns)
    data = plain_varint(len(flagged))
    if flagged:
        data += plain_section([(gap, plain_parameter(len(flagged), in_)) for gap in plain_gaps(flagged)])
    data += plain_varint(items)
    if items:
        data += plain_section([(len(column), plain_parameter(in_, in_ + items)) for column in columns])
        coded = [(plain_parameter(len(column), out), column) for column in columns]
        coded.sort(key=lambda pair: -pair[0])
        data += plain_section([(gap, parameter) for parameter, column in coded for gap in plain_gaps(column)])
    return data


def stream(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def skewed(out: int, in_: int, keep: float, skew: float, seed: int = 0) -> Mask:
    """The top entries of random scores whose columns differ by a log-normal factor."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(out, in_, generator=generator).abs() * torch.randn(in_, generator=generator).mul(skew).exp()
    dense = torch.zeros(out * in_, dtype=torch.bool)
    dense[scores.flatten().topk(int(keep * out * in_)).indices] = True
    return Mask.from_dense(dense.view(out, in_))


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    out, in_ = draw(st.integers(1, 70)), draw(st.integers(1, 24))
    densities = draw(st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.5, 0.51, 0.9, 1.0]), min_size=in_, max_size=in_))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    return Mask.from_dense(torch.rand(out, in_, generator=generator) < torch.tensor(densities))


@settings(max_examples=300, deadline=None)
@given(masks())
def test_array_coder_equals_the_specification_and_inverts(mask: Mask) -> None:
    data = encode(mask)
    assert bytes(data.tolist()) == plain_encode(mask.dense().tolist())
    assert decode(data, mask.shape) == mask


@pytest.mark.parametrize(("keep", "skew"), [(0.0001, 0.0), (0.01, 0.0), (0.05, 2.0), (0.5, 1.0), (0.97, 0.5)])
def test_large_masks_come_back(keep: float, skew: float) -> None:
    mask = skewed(1000, 300, keep, skew)
    assert decode(encode(mask), mask.shape) == mask


def test_remainders_of_more_than_eight_and_sixteen_bits() -> None:
    for out in (2**12, 2**20, 2**29):
        mask = Mask.from_flat((out, 2), torch.tensor([0, 1, out, 2 * out - 1]))
        data = encode(mask)
        assert decode(data, mask.shape) == mask
        assert data.numel() < 24


def pattern(out: int, in_: int) -> Mask:
    """A mask with empty, sparse, dense and whole columns."""
    rows, columns = torch.arange(out).unsqueeze(1), torch.arange(in_)
    return Mask.from_dense((rows * rows * 7 + rows * columns + columns * 13) % 29 < columns**3 // 40)


GOLDEN = [
    # nothing held, everything held, one entry, a diagonal, a dense column beside sparse ones
    (Mask.empty((3, 5)), "0000"),
    (Mask.from_dense(torch.ones(3, 5, dtype=torch.bool)), "05011f00"),
    (Mask.from_flat((1, 1), torch.tensor([0])), "01010100"),
    (Mask.from_flat((4, 4), torch.tensor([0, 5, 10, 15])), "000401aa022502"),
    (Mask.from_flat((5, 3), torch.tensor([1, 4, 7, 13, 2, 9])), "01010203012a011a03"),
    (pattern(40, 12), "030170013a033f89d060051a1146fc911863f1684d0305966992b46a49126a09f8d004"),
]


@pytest.mark.parametrize(("mask", "golden"), GOLDEN)
def test_golden_bytes(mask: Mask, golden: str) -> None:
    assert bytes(encode(mask).tolist()).hex() == golden
    assert decode(stream(bytes.fromhex(golden)), mask.shape) == mask


def test_parameters_are_within_one_percent_of_the_best() -> None:
    for size in (1, 2, 3, 5, 8, 13, 32, 100, 333, 768, 2048):
        for count in {max(1, round(size / 2 * step / 40)) for step in range(1, 41)} | {1, min(2, (size + 1) // 2)}:
            # chance that the gap between items of a random choice is at least so long
            longer = [1.0]
            for gap in range(size - count):
                longer.append(longer[-1] * (size - count - gap) / (size - gap))
            bits = [1 + parameter + sum(longer[1 << parameter :: 1 << parameter]) for parameter in range(12)]
            assert bits[plain_parameter(count, size)] <= 1.01 * min(bits), (count, size)


def column_entropy(mask: Mask) -> float:
    """Bits to tell the rows of every column, once its count is known."""
    out, counts = mask.shape[0], mask.counts.to(torch.float64)
    choose = math.lgamma(out + 1) - torch.lgamma(counts + 1) - torch.lgamma(out - counts + 1)
    return float(choose.sum()) / math.log(2)


def test_compactness() -> None:
    for keep, skew in [(0.05, 0.0), (0.01, 0.0), (0.05, 1.0), (0.05, 2.0), (0.01, 2.0)]:
        mask = skewed(1024, 512, keep, skew)
        assert 8 * encode(mask).numel() <= 1.2 * column_entropy(mask)
    even = skewed(1024, 512, 0.05, 0.0)
    assert 8 * encode(even).numel() / even.held <= 5.9
    tiny = skewed(128, 128, 1 / 128, 0.0)
    assert 8 * encode(tiny).numel() / tiny.held <= 9.6
    columns = torch.zeros(512, 2048, dtype=torch.bool)
    columns[:, 5::97] = True
    assert encode(Mask.from_dense(columns)).numel() <= 2048 // 8 // 8


def decode_or_refuse(data: bytes, shape: tuple[int, int]) -> None:
    try:
        mask = decode(stream(data), shape)
    except FormatError:
        return
    assert bytes(encode(mask).tolist()) == data
    columns = mask.columns()
    assert Mask.from_flat(shape, mask.flat()) == mask
    assert torch.equal(columns.bincount(minlength=shape[1]), mask.counts.to(torch.int64))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=40), st.integers(1, 40), st.integers(1, 12))
@example(b"", 3, 3)
@example(b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff", 3, 3)
def test_any_bytes_are_refused_or_canonical(data: bytes, out: int, in_: int) -> None:
    decode_or_refuse(data, (out, in_))


@settings(max_examples=500, deadline=None)
@given(masks(), st.data())
def test_damaged_streams_are_refused_or_canonical(mask: Mask, data: st.DataObject) -> None:
    intact = bytearray(encode(mask).tolist())
    place = data.draw(st.integers(0, len(intact) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "append", "shape"]))
    shape = mask.shape
    if how == "flip":
        intact[place] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del intact[place:]
    elif how == "insert":
        intact.insert(place, data.draw(st.integers(0, 255)))
    elif how == "append":
        intact.append(data.draw(st.integers(0, 255)))
    else:
        shape = (data.draw(st.integers(1, 70)), data.draw(st.integers(1, 24)))
    decode_or_refuse(bytes(intact), shape)


def test_a_stream_of_another_length_is_refused() -> None:
    data = encode(skewed(64, 32, 0.1, 1.0))
    with pytest.raises(FormatError, match="ends after"):
        decode(data[:-1], (64, 32))
    with pytest.raises(FormatError, match="should end"):
        decode(torch.cat([data, data[:1]]), (64, 32))


def test_absurd_counts_and_shapes_are_refused_at_once() -> None:
    with pytest.raises(FormatError, match="items is"):
        decode(stream(b"\x00" + plain_varint(2**30)), (64, 64))
    with pytest.raises(FormatError, match="integers where"):
        decode(stream(b"\x00" + plain_varint(2**29) + b"\x01\x01"), (2**20, 2**10))
    with pytest.raises(FormatError, match="no weight has shape"):
        decode(stream(b"\x00\x00"), (2**31, 2**31))
    with pytest.raises(FormatError, match="no weight has shape"):
        decode(stream(b"\x00\x00"), (0, 4))
    with pytest.raises(FormatError, match="uint8"):
        decode(torch.zeros(2, dtype=torch.int8), (4, 4))


def mask_set() -> MaskSet:
    return MaskSet(
        {"b.weight": skewed(64, 32, 0.05, 1.0), "a.weight": skewed(32, 16, 0.5, 1.0), "c": Mask.empty((3, 2))}
    )


def test_a_file_comes_back_in_order_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    save_masks(path, mask_set(), {"method": "mathneuro", "é": "ü"})
    loaded, metadata = load_masks(path)
    assert list(loaded) == ["b.weight", "a.weight", "c"]
    assert dict(loaded) == dict(mask_set())
    assert metadata == {"method": "mathneuro", "é": "ü"}
    assert [child.name for child in tmp_path.iterdir()] == ["masks.safetensors"]
    with safe_open(str(path), framework="pt") as file:
        assert torch.equal(file.get_tensor("b.weight"), encode(mask_set()["b.weight"]))
        assert file.metadata()["shapes"] == '{"b.weight":[64,32],"a.weight":[32,16],"c":[3,2]}'


def test_a_file_of_no_weights(tmp_path: Path) -> None:
    save_masks(tmp_path / "masks", MaskSet({}))
    assert load_masks(tmp_path / "masks") == (MaskSet({}), {})


GOLDEN_FILE = (
    b"\xa0\x00\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"format":"mathneuro-masks","format_version":"1","shapes":"{\\"w\\":[4,4]}","a":"2","z":"1"},'
    b'"w":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}} '
    b"\x00\x04\x01\xaa\x02%\x02"
)


def test_golden_file(tmp_path: Path) -> None:
    masks = MaskSet({"w": Mask.from_flat((4, 4), torch.tensor([0, 5, 10, 15]))})
    save_masks(tmp_path / "masks", masks, {"z": "1", "a": "2"})
    assert (tmp_path / "masks").read_bytes() == GOLDEN_FILE


def test_replacing_a_file_and_failing_to(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    save_masks(path, mask_set())
    save_masks(path, MaskSet({}))
    assert not load_masks(path)[0]
    with pytest.raises(OutputError, match="beneath"):
        save_masks(path / "beneath", mask_set())
    with pytest.raises(SettingError, match="'shapes'"):
        save_masks(path, mask_set(), {"shapes": "{}"})


def test_foreign_newer_and_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "masks.safetensors"
    tensors = {"w": encode(Mask.empty((4, 4)))}
    good = {"format": "mathneuro-masks", "format_version": "1", "shapes": '{"w":[4,4]}'}
    save_file(tensors, path, good)
    assert load_masks(path)[0]["w"].shape == (4, 4)
    bad = [
        ({}, "its format is None"),
        (good | {"format": "pt"}, "'pt'"),
        (good | {"format_version": "2"}, "update"),
        (good | {"shapes": "{"}, "table of shapes"),
        (good | {"shapes": "[]"}, "table of shapes"),
        (good | {"shapes": '{"w":[4]}'}, "table of shapes"),
        (good | {"shapes": '{"w":4}'}, "table of shapes"),
        (good | {"shapes": '{"w":[4.0,4]}'}, "table of shapes"),
        (good | {"shapes": '{"v":[4,4]}'}, "table of shapes"),
        (good | {"shapes": '{"w":[4,-4]}'}, "no weight has shape"),
    ]
    for metadata, reason in bad:
        save_file(tensors, path, metadata)
        with pytest.raises(FormatError, match=reason) as caught:
            load_masks(path)
        assert str(path) in str(caught.value)
    save_file({"w": torch.zeros(2)}, path, good)
    with pytest.raises(FormatError, match="uint8"):
        load_masks(path)
    for data in (b"", b"\xff" * 40, b"PK\x03\x04 not ours"):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=path.name):
            load_masks(path)
    with pytest.raises(FormatError, match="missing"):
        load_masks(tmp_path / "missing")


def test_every_cut_and_flipped_byte_of_a_file_is_refused_or_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "masks"
    save_masks(path, MaskSet({"w": skewed(16, 8, 0.2, 1.0)}), {"k": "v"})
    intact = path.read_bytes()
    for place in range(len(intact)):
        for data in (intact[:place], intact[:place] + bytes([intact[place] ^ 4]) + intact[place + 1 :]):
            path.write_bytes(data)
            try:
                masks, _ = load_masks(path)
            except FormatError:
                continue
            assert isinstance(masks, MaskSet)
