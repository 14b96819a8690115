"""Loads a task's questions from the JSONL file beside its YAML: in memory, with no cache and no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset


def load(file: str, **_: Any) -> dict[str, Dataset]:
    """lm-eval calls this as ``custom_dataset``, with ``dataset_kwargs`` and the task's metadata as keywords."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}
