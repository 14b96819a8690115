"""Versions that a file records, so that a result can be made again."""

from __future__ import annotations

import platform
from importlib import metadata

from mathneuro_hub._version import __version__


def versions() -> dict[str, str]:
    """This library, Python, and the libraries whose arithmetic enters a result."""
    found = {"mathneuro-hub": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in ("torch", "transformers")}
