"""Bake an edit into a checkpoint: the base's files copied, the masked values scaled on their way through."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import check_scale
from mathneuro_hub.adapter.edit import scaled
from mathneuro_hub.base_model import BaseModel
from mathneuro_hub.errors import ModelError, OutputError
from mathneuro_hub.files import check_free, replacing_folder
from mathneuro_hub.masks import Mask
from mathneuro_hub.weights import Weight

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK = 1 << 18  # bytes at a time: a multiple of every dtype's size that stays in a core's cache
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".safetensors"}
_NOT_OURS = {"README.md", ".gitattributes", ".gitignore"}


def bake(
    base: BaseModel,
    adapter: NeurosurgeryAdapter,
    out: Path | str,
    *,
    scale: float | None = None,
    overwrite: bool = False,
    finish: Callable[[Path], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write an edited checkpoint folder with the base's shard names, tokenizer, generation config and chat template.

    The bytes of the weights are those that attaching the adapter at this scale gives. Weights in any other
    format that lie beside the checkpoint are left behind, since they would hold the unedited model.

    Args:
        base: the base, which has to be the adapter's own.
        adapter: the edit.
        out: folder to write; it appears only when complete.
        scale: instead of the adapter's recommended scale.
        overwrite: replace ``out`` if it exists, once the new folder is complete.
        finish: called with the unpublished folder to add more files to it (a card).
        on_progress: called with (files done, files in all).

    Raises:
        BaseMismatchError: the adapter belongs to another base.
        OutputError: ``out`` exists, cannot be written, or the disk has no space for it.
        ModelError: the checkpoint cannot be read, or stores a masked weight in a dtype that cannot be edited.
    """
    out = Path(out)
    factor = adapter.scale if scale is None else scale
    check_scale(factor)
    check_free(out, overwrite)
    coverage = base.coverage(adapter.config.include_lm_head)
    adapter.check_base(base.weights, coverage)
    edits: dict[str, list[tuple[str, Weight, Mask]]] = defaultdict(list)
    for name, mask in adapter.masks.items():
        if mask.held:
            stored_name, file = base.weights.locate(coverage.weights[name])
            edits[file].append((stored_name, coverage.weights[name], mask))
    files = _files_to_copy(base)
    _check_space(files, out)
    with replacing_folder(out, overwrite) as aside:
        for done, path in enumerate(files):
            if on_progress is not None:
                on_progress(done, len(files))
            if path.name in edits:
                _copy_edited(path, aside / path.name, edits[path.name], factor)
            else:
                shutil.copyfile(path, aside / path.name)
        if finish is not None:
            finish(aside)
        if on_progress is not None:
            on_progress(len(files), len(files))


def _files_to_copy(base: BaseModel) -> list[Path]:
    shards = set(base.weights.files.values())
    return [
        path
        for path in sorted(base.folder.iterdir())
        if path.is_file()
        and path.name not in _NOT_OURS
        and (path.name in shards or path.suffix not in _OTHER_WEIGHTS)
        and not path.name.endswith((".bin.index.json", ".h5.index.json"))
    ]


def _check_space(files: list[Path], out: Path) -> None:
    needed = sum(path.stat().st_size for path in files)
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise OutputError(
            f"{out} needs {needed / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB left; free some, or choose another "
            "output."
        )


def _copy_edited(source: Path, target: Path, edits: list[tuple[str, Weight, Mask]], scale: float) -> None:
    """Copy a safetensors file in one pass, block by block, scaling the masked values on their way through."""
    with source.open("rb") as reading, target.open("wb") as writing:
        length = reading.read(8)
        text = reading.read(int.from_bytes(length, "little"))
        writing.write(length + text)
        header = json.loads(text)
        buffer = bytearray(_BLOCK)
        at = 0
        for name, weight, mask in sorted(edits, key=lambda edit: header[edit[0]]["data_offsets"]):
            begin, end = header[name]["data_offsets"]
            _copy(reading, writing, buffer, begin - at)
            dtype = _dtype(name, header[name]["dtype"])
            _copy_scaled(reading, writing, buffer, end - begin, dtype, weight.positions(mask), scale)
            at = end
        _copy(reading, writing, buffer, source.stat().st_size - reading.tell())


def _copy(reading: BinaryIO, writing: BinaryIO, buffer: bytearray, count: int) -> None:
    writing.writelines(_blocks(reading, buffer, count))


def _copy_scaled(
    reading: BinaryIO,
    writing: BinaryIO,
    buffer: bytearray,
    count: int,
    dtype: torch.dtype,
    positions: Tensor,
    scale: float,
) -> None:
    begin = 0
    for block in _blocks(reading, buffer, count):
        values = torch.frombuffer(block, dtype=dtype)
        ends = torch.searchsorted(positions, torch.tensor([begin, begin + len(values)]))
        here = positions[ends[0] : ends[1]] - begin
        values[here] = scaled(values[here], scale)
        writing.write(block)
        begin += len(values)


def _blocks(reading: BinaryIO, buffer: bytearray, count: int) -> Iterator[memoryview]:
    """The next ``count`` bytes of a file, through one buffer."""
    while count:
        block = memoryview(buffer)[: min(count, len(buffer))]
        if reading.readinto(block) != len(block):  # type: ignore[attr-defined]
            raise ModelError(f"{reading.name} ends early; fetch the checkpoint again.")
        yield block
        count -= len(block)


def _dtype(name: str, stored: str) -> torch.dtype:
    if stored not in DTYPES:
        raise ModelError(
            f"{name} is stored as {stored}, which cannot be edited; bake the full-precision base, then quantise it again."
        )
    return DTYPES[stored]
