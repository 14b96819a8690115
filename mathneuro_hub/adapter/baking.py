"""Bake an edit into a checkpoint: the base's files copied, the masked values patched where they lie on disk."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.config import check_scale
from mathneuro_hub.adapter.edit import scaled
from mathneuro_hub.base_model import BaseModel
from mathneuro_hub.errors import ModelError, OutputError
from mathneuro_hub.files import check_free, replacing_folder
from mathneuro_hub.masks import Mask
from mathneuro_hub.weights import Weight

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
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
            copy = aside / path.name
            shutil.copyfile(path, copy)
            if path.name in edits:
                _patch(copy, edits[path.name], factor)
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


def _patch(path: Path, edits: list[tuple[str, Weight, Mask]], scale: float) -> None:
    """Scale the masked values of a safetensors file in place."""
    with path.open("rb") as handle:
        header_bytes = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(header_bytes))
    for stored_name, weight, mask in edits:
        entry = header[stored_name]
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ModelError(
                f"{stored_name} is stored as {entry['dtype']}, which cannot be edited; bake the full-precision base, "
                "then quantise it again."
            )
        begin, end = entry["data_offsets"]
        stored = np.memmap(path, np.uint8, "r+", 8 + header_bytes + begin, (end - begin,))
        values = torch.from_numpy(stored).view(dtype)
        positions = weight.positions(mask)
        values[positions] = scaled(values[positions], scale)
        stored.flush()
