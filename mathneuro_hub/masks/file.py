"""The mask file: safetensors, one index stream per weight. docs/format.md specifies it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from mathneuro_hub.errors import FormatError, SettingError
from mathneuro_hub.files import write_safetensors
from mathneuro_hub.masks.codec import decode, encode
from mathneuro_hub.masks.mask_set import MaskSet

_FORMAT = "mathneuro-masks"
_VERSION = 1
_RESERVED = ("format", "format_version", "shapes")


def save_masks(path: str | Path, masks: MaskSet, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a mask set to a file. Equal mask sets and metadata give equal bytes.

    Written aside and moved into place at the end, so that a file under this name is always whole.

    Raises:
        SettingError: the metadata uses a key of the format's own.
        OutputError: the file cannot be written.
    """
    given = dict(metadata or {})
    for key in _RESERVED:
        if key in given:
            raise SettingError(f"the metadata of a mask file cannot set {key!r}, which the format uses; rename it.")
    shapes = json.dumps({name: mask.shape for name, mask in masks.items()}, separators=(",", ":"))
    own = {"format": _FORMAT, "format_version": str(_VERSION), "shapes": shapes}
    streams = {name: encode(mask) for name, mask in masks.items()}
    write_safetensors(Path(path), streams, own | dict(sorted(given.items())))


def stream_bytes(path: str | Path) -> int:
    """Bytes of the index streams in a mask file, its header left out."""
    with safe_open(str(path), framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def load_masks(path: str | Path) -> tuple[MaskSet, dict[str, str]]:
    """Reads a file that `save_masks` wrote: the mask set, in its order, and the metadata it was given.

    Raises:
        FormatError: the file is not there, damaged, no mask file, or of a newer version.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            shapes = _shapes(metadata, set(file.keys()))
            masks = MaskSet({name: decode(file.get_tensor(name), shape) for name, shape in shapes.items()})
    except (FormatError, SafetensorError, OSError) as error:
        raise FormatError(f"{path} cannot be read as a mask file: {error}") from error
    return masks, {key: value for key, value in metadata.items() if key not in _RESERVED}


def _shapes(metadata: Mapping[str, str], names: set[str]) -> dict[str, tuple[int, int]]:
    if metadata.get("format") != _FORMAT:
        raise FormatError(f"its format is {metadata.get('format')!r} and not {_FORMAT!r}; choose another file.")
    version = metadata.get("format_version", "")
    if version != str(_VERSION):
        raise FormatError(f"its format version is {version!r} and this version reads {_VERSION}; update mathneuro-hub.")
    try:
        shapes = json.loads(metadata.get("shapes", ""))
        sizes = {name: (out, in_) for name, (out, in_) in shapes.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        sizes = None
    if sizes is None or set(sizes) != names or any(type(size) is not int for shape in sizes.values() for size in shape):
        raise FormatError("its table of shapes does not fit its weights; take it from its source again.")
    return sizes
