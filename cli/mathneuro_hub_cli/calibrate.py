"""``mathneuro calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output


def calibrate(
    model: options.Model,
    data: Annotated[
        str, typer.Option("--data", "-d", help="A preset, a CSV, JSON, JSONL or Parquet file, or a Hub id[:config].")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Norms file to write (.safetensors).")],
    split: Annotated[str | None, typer.Option(help="Split of a Hub data set.")] = None,
    data_revision: Annotated[str | None, typer.Option(help="Revision of a Hub data set.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns to join as the text, separated by commas.", show_default="by convention")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Jinja template over a row's columns: '{{question}} {{answer}}'.")
    ] = None,
    num_samples: options.NumSamples = None,
    seed: options.Seed = 0,
    replacement: options.Replacement = False,
    chat_template: options.ChatTemplate = False,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = 8,
    include_lm_head: options.IncludeLmHead = False,
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    no_cache: options.NoCache = False,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Run a model over texts and keep the norms of what enters each weight (kilobytes).

    Presets: gsm8k, math, race, mmlu, and demo:math, demo:capitals, demo:grammar.

    Example: mathneuro calibrate -m demo -d demo:math -o math-norms.safetensors
    """
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.calibration.calibrator import Calibrator
    from mathneuro_hub.calibration.data import DataSpec
    from mathneuro_hub.files import check_free

    out = Output(form)
    spec = DataSpec(
        source=data,
        split=split,
        revision=data_revision,
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        prompt=prompt,
        num_samples=num_samples,
        seed=seed,
        replacement=replacement,
        chat_template=chat_template,
    )
    check_free(output, overwrite)
    calibrator = Calibrator(
        find_base(model, revision),
        batch_size=batch_size,
        max_length=max_length,
        include_lm_head=include_lm_head,
        dtype=dtype,
        device=device,
        device_map=device_map,
        use_cache=not no_cache,
        report=lambda name, done, total: out.progress(f"Calibrating on {name}", done, total, "samples"),
    )
    norms = calibrator.norms(spec)
    norms.save(output)
    size = output.stat().st_size
    out.result(
        {
            "path": str(output),
            "bytes": size,
            "samples": norms.samples,
            "tokens": norms.tokens,
            "truncated": norms.truncated,
            "weights": len(norms.sites),
            "inputs": len(norms.vectors),
        },
        human=f"{norms.samples} samples, {norms.tokens:,} tokens ({norms.truncated} samples cut at the length cap); "
        f"{len(norms.sites)} weights fed by {len(norms.vectors)} inputs\nSaved {output} ({size:,} bytes)",
        quiet=str(output),
    )
