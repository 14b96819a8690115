"""``mathneuro surgery export``: an adapter in a form that other libraries load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output


def export(
    adapter: options.Adapter,
    peft: Annotated[Path, typer.Option(help="Folder to write, which peft.PeftModel.from_pretrained loads.")],
    model: options.BaseOfAdapter = None,
    revision: options.Revision = None,
    scale: options.ScaleOfAdapter = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Write the edit as a SHiRA adapter, for people who have PEFT and not mathneuro-hub.

    Example: mathneuro surgery export -a math/ --peft math-peft/
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, export_peft

    out = Output(form)
    loaded = NeurosurgeryAdapter.from_pretrained(adapter)
    factor = loaded.scale if scale is None else scale
    base = loaded.find_base(model, revision)
    export_peft(loaded, base, peft, scale=factor, overwrite=overwrite)
    size = sum(path.stat().st_size for path in peft.iterdir())
    out.result(
        {"path": str(peft), "scale": factor, "edited": loaded.config.held, "bytes": size},
        human=f"{loaded.config.held:,} weights multiplied by {factor:g}, as a SHiRA adapter\n"
        f"Saved {peft} ({size / 1e6:,.1f} MB)",
        quiet=str(peft),
    )
