"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mathneuro_hub_cli.output import Format


class Method(StrEnum):
    """How entries are chosen."""

    mathneuro = "mathneuro"
    wanda = "wanda"
    random = "random"
    magnitude = "magnitude"


Model = Annotated[
    str, typer.Option("--model", "-m", help="Base model: a Hub id, a checkpoint folder, or 'demo' (bundled).")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the base model on the Hub.")]
Token = Annotated[str | None, typer.Option(help="Hub token; default the stored login.", show_default=False)]
Adapter = Annotated[str, typer.Option("--adapter", "-a", help="Adapter: a folder, or a Hub id.")]
AdapterRevision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the adapter on the Hub.")]
BaseOfAdapter = Annotated[
    str | None, typer.Option("--model", "-m", help="Base model.", show_default="the one the adapter names")
]
ScaleOfAdapter = Annotated[float | None, typer.Option(help="0 prunes.", show_default="the adapter's recommended scale")]
KeepRatio = Annotated[float, typer.Option(help="Share of each weight's entries kept for the skill.")]
ContrastKeepRatio = Annotated[
    float | None, typer.Option(help="The same for the contrasts.", show_default="the keep ratio")
]
MethodChoice = Annotated[Method, typer.Option(help="How entries are chosen.")]
NumSamples = Annotated[
    int | None, typer.Option(help="Samples drawn from a data set.", show_default="500, or all if there are fewer")
]
Seed = Annotated[int, typer.Option(help="Seed of every draw.")]
Replacement = Annotated[bool, typer.Option("--replacement", help="Draw samples with replacement, as the paper does.")]
ChatTemplate = Annotated[bool, typer.Option("--chat-template", help="Wrap samples in the tokenizer's chat template.")]
MaxLength = Annotated[int | None, typer.Option(help="Longest sample in tokens.", show_default="what the model allows")]
BatchSize = Annotated[int, typer.Option(help="Samples per forward pass.")]
IncludeLmHead = Annotated[
    bool, typer.Option("--include-lm-head", help="Cover the output embedding too, where it is not tied.")
]
Dtype = Annotated[str, typer.Option(help="Load the model in this dtype: auto, float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...", show_default="cuda if there, else cpu")]
DeviceMap = Annotated[str | None, typer.Option(help="Spread a large model, for instance 'auto' (accelerate).")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither re-use nor keep activation norms.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output if it exists, once the new one is complete.")
]
OutFolder = Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")]
OutputFormat = Annotated[
    Format, typer.Option("--format", help="human: tables; json: one object; quiet: the essential value alone.")
]


def bundled_tasks(names: list[str]) -> Path | None:
    """The folder of the bundled tasks if one of ``names`` reads like one of theirs."""
    from mathneuro_hub.demo import TASKS_FOLDER

    return TASKS_FOLDER if any(name.startswith("demo_") for name in names) else None
