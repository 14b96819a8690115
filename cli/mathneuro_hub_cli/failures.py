"""Turns known errors into one sentence and exit status 1."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TextIO


def guarded(run: Callable[[], None]) -> int:
    """Run the command line; 0 on success, 1 for any error, 2 for wrong usage."""
    warnings.showwarning = _show_warning
    try:
        run()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # the last line of defence: anything unforeseen is reported as ours
        return _report(error)
    return 0


def _report(error: Exception) -> int:
    from mathneuro_hub.errors import MathNeuroError

    if os.environ.get("MATHNEURO_DEBUG"):
        traceback.print_exc()
    elif isinstance(error, MathNeuroError):
        print(f"Error: {error}", file=sys.stderr)
    else:
        print(
            f"Error: {type(error).__name__}: {error}\n"
            "This was not foreseen; run again with MATHNEURO_DEBUG=1 for the traceback, and please report it.",
            file=sys.stderr,
        )
    return 1


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings as one line; those of libraries are noise to the user of a command."""
    if "mathneuro_hub" in filename:
        print(f"Warning: {message}", file=sys.stderr)
