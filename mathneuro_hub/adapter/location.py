"""Where an adapter is: a folder, or a repo on the Hub that is fetched into the usual cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mathneuro_hub.adapter.config import CONFIG_FILE, MASKS_FILE
from mathneuro_hub.errors import FormatError
from mathneuro_hub.remote import fetch

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find_adapter(
    repo_or_dir: Path | str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | str | None = None,
    local_files_only: bool = False,
    patterns: Sequence[str] | None = (CONFIG_FILE, MASKS_FILE),
) -> Path:
    """The folder that holds an adapter's files. A local folder wins over a Hub id of the same spelling.

    Args:
        repo_or_dir: a folder, or a Hub id as ``TEAM/NAME``.
        revision: branch, tag or commit on the Hub; not looked at for a folder.
        token: instead of the stored login.
        cache_dir: instead of the usual cache.
        local_files_only: make no request.
        patterns: which files of a repo are fetched; None for all.

    Raises:
        FormatError: it holds no adapter.
        HubError: the repo is missing, private, gated or not cached, or the Hub cannot be reached.
    """
    name = str(repo_or_dir)
    folder = Path(repo_or_dir)
    from_hub = not folder.exists() and _HUB_ID.fullmatch(name) is not None and not name.startswith(".")
    if from_hub:
        folder = fetch(
            name,
            "adapter",
            revision=revision,
            patterns=patterns,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
    if not (folder / CONFIG_FILE).is_file():
        raise FormatError(
            f"{name} holds no adapter ({CONFIG_FILE} is missing); give a {'repo' if from_hub else 'folder'} that "
            f"`mathneuro surgery {'push' if from_hub else 'create'}` wrote."
        )
    return folder
