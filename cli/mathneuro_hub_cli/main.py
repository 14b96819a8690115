"""The ``mathneuro`` command: wiring only."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from mathneuro_hub_cli import calibrate, demo, evaluate, mask, surgery
from mathneuro_hub_cli.failures import guarded

app = typer.Typer(
    name="mathneuro",
    help="Find the few weights of a language model that carry one skill, edit them, and share the edit.\n\n"
    "Start with: mathneuro demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("calibrate", no_args_is_help=True)(calibrate.calibrate)
app.add_typer(surgery.app, name="surgery")
app.add_typer(mask.app, name="mask")
app.command("eval", no_args_is_help=True)(evaluate.evaluate)
app.command("demo")(demo.demo)


def _show_version(asked: bool) -> None:
    if asked:
        from mathneuro_hub._version import __version__

        print(f"mathneuro {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def run() -> None:
    """Entry point of the console script."""
    sys.exit(guarded(app))
