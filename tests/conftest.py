"""Every test runs offline, with a Hugging Face home of its own; set before any client library is imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_HOME = tempfile.mkdtemp(prefix="mathneuro-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

os.environ |= {
    "HF_HOME": _HOME,
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
