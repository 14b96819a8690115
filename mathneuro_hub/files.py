"""Writing so that nothing is ever half-written: aside first, renamed when complete."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from mathneuro_hub.errors import OutputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write a file to; it takes the place of ``path`` if the block succeeds.

    Raises:
        OutputError: the folder cannot be written to, or the disk is full.
    """
    with _clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        aside = Path(name)
        aside.chmod(0o666 & ~_umask())
        try:
            yield aside
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


_SAFETENSORS_NAMES = {"torch.float32": "F32", "torch.int64": "I64", "torch.uint8": "U8"}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file whose bytes depend on nothing but the arguments; aside first, then renamed.

    The safetensors library itself orders metadata differently from run to run, so that equal contents would have
    different hashes.

    Raises:
        OutputError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_NAMES[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.cpu().contiguous().numpy().tobytes())


@contextmanager
def replacing_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A new folder beside ``path`` to fill; it takes the place of ``path`` if the block succeeds.

    An existing folder is removed only after the new one is complete, and only with ``overwrite``.

    Raises:
        OutputError: ``path`` exists and ``overwrite`` is off, the folder cannot be written to, or the disk is full.
    """
    check_free(path, overwrite)
    with _clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        aside.chmod(0o777 & ~_umask())
        try:
            yield aside
            if path.exists():
                old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
                os.replace(path, old / "previous")
                os.replace(aside, path)
                shutil.rmtree(old)
            else:
                os.replace(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse an output that exists already; called before any work is done.

    Raises:
        OutputError
    """
    if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
        raise OutputError(f"{path} exists already; choose another output, or --overwrite to replace it.")


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError) or error.errno is None:
            raise
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error.errno)
        raise OutputError(f"{path} cannot be written: {reason}; nothing was left behind.") from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
