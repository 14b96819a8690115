"""The one output sink: stdout is data, stderr is everything else, progress is for people at a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class Format(StrEnum):
    """How a command prints its result."""

    human = "human"
    json = "json"
    quiet = "quiet"


class Output:
    """What a command says, in one of the three formats.

    Args:
        form: ``human`` prints tables and sentences, ``json`` one object, ``quiet`` the essential value alone.
    """

    def __init__(self, form: Format) -> None:
        self.form = form
        self._progress_shown = False
        self._started: dict[str, float] = {}

    def result(self, data: dict[str, Any], human: str, quiet: str = "") -> None:
        """The command's result, once, on stdout."""
        text = {Format.human: human, Format.json: json.dumps(data, indent=2), Format.quiet: quiet}[self.form]
        if text:
            print(text)

    def note(self, text: str) -> None:
        """A remark for a person, on stderr; silent in quiet."""
        self._end_progress()
        if self.form is not Format.quiet:
            print(text, file=sys.stderr)

    def progress(self, what: str, done: int, total: int, unit: str) -> None:
        """A progress line with rate and time left; at a terminal and for people only."""
        if self.form is not Format.human or not sys.stderr.isatty() or not total:
            return
        started = self._started.setdefault(what, time.monotonic())
        elapsed = time.monotonic() - started
        rate = done / elapsed if elapsed > 0 else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        print(f"\r\x1b[2K{what}: {done}/{total} {unit}, {rate:.1f}/s{left}", end="", file=sys.stderr, flush=True)
        self._progress_shown = True
        if done >= total:
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress_shown:
            print(file=sys.stderr)
            self._progress_shown = False


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned text: the first column to the left, the others to the right."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
