"""``mathneuro surgery``: make adapters and bake them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import export, options
from mathneuro_hub_cli.output import Format, Output

if TYPE_CHECKING:
    from mathneuro_hub.calibration import ActivationNorms

app = typer.Typer(help="Create an adapter, or bake one into a checkpoint.", no_args_is_help=True)


class Method(StrEnum):
    """How entries are chosen."""

    mathneuro = "mathneuro"
    wanda = "wanda"
    random = "random"
    magnitude = "magnitude"


@app.command(no_args_is_help=True)
def create(
    model: options.Model,
    output: options.OutFolder,
    skill: Annotated[
        str | None, typer.Option(help="A norms file, or a data set as in `mathneuro calibrate --data`.")
    ] = None,
    contrast: Annotated[
        list[str] | None, typer.Option(help="Likewise; repeat for several, what any of them keeps is taken away.")
    ] = None,
    keep_ratio: Annotated[float, typer.Option(help="Share of each weight's entries kept for the skill.")] = 0.05,
    contrast_keep_ratio: Annotated[
        float | None, typer.Option(help="The same for the contrasts.", show_default="the keep ratio")
    ] = None,
    scale: Annotated[float, typer.Option(help="Recommended scale: 0 prunes, 1.1 strengthens a little.")] = 1.1,
    method: Annotated[Method, typer.Option(help="How entries are chosen.")] = Method.mathneuro,
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
    """Find the weights that carry a skill, and save them as an adapter folder.

    Example: mathneuro surgery create -m demo --skill demo:math --contrast demo:capitals --contrast demo:grammar -o math/
    """
    from mathneuro_hub.adapter import check_request, create_adapter
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.calibration.calibrator import Calibrator
    from mathneuro_hub.calibration.data import DataSpec
    from mathneuro_hub.files import check_free
    from mathneuro_hub.publishing.card import save_adapter

    out = Output(form)
    check_request(method.value, skill is not None, len(contrast or ()), keep_ratio, contrast_keep_ratio, scale)
    check_free(output, overwrite)
    base = find_base(model, revision)
    calibrator = Calibrator(
        base,
        batch_size=batch_size,
        max_length=max_length,
        include_lm_head=include_lm_head,
        dtype=dtype,
        device=device,
        device_map=device_map,
        use_cache=not no_cache,
        report=lambda name, done, total: out.progress(f"Calibrating on {name}", done, total, "samples"),
    )

    def norms(source: str) -> ActivationNorms:
        if source.endswith(".safetensors"):
            return calibrator.norms(source)
        return calibrator.norms(
            DataSpec(source, num_samples=num_samples, seed=seed, replacement=replacement, chat_template=chat_template)
        )

    adapter = create_adapter(
        base,
        method=method.value,
        skill=norms(skill) if skill else None,
        contrasts=[norms(source) for source in contrast or ()],
        keep_ratio=keep_ratio,
        contrast_keep_ratio=contrast_keep_ratio,
        scale=scale,
        seed=seed,
        include_lm_head=include_lm_head,
    )
    save_adapter(adapter, output, overwrite=overwrite)
    config = adapter.config
    out.result(
        {
            "path": str(output),
            "method": config.method,
            "held": config.held,
            "covered": config.covered,
            "total": config.total,
            "density": config.density,
            "scale": config.scale,
        },
        human=f"{config.held:,} weights held, {config.density:.2%} of {config.covered:,} covered "
        f"({config.total:,} in the model); recommended scale {config.scale:g}\nSaved {output}",
        quiet=str(output),
    )


@app.command(no_args_is_help=True)
def bake(
    adapter: Annotated[Path, typer.Option("--adapter", "-a", help="Adapter folder.")],
    output: options.OutFolder,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model.", show_default="the one the adapter names")
    ] = None,
    revision: options.Revision = None,
    scale: Annotated[
        float | None, typer.Option(help="0 prunes.", show_default="the adapter's recommended scale")
    ] = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Write the edited model as a plain checkpoint folder that transformers loads.

    Example: mathneuro surgery bake -a math/ --scale 0 -o without-math/
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, bake
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.publishing.card import write_baked_card

    out = Output(form)
    loaded = NeurosurgeryAdapter.from_pretrained(adapter)
    factor = loaded.scale if scale is None else scale
    base = find_base(model or loaded.config.base_model_name_or_path, revision or loaded.config.revision)
    bake(
        base,
        loaded,
        output,
        scale=factor,
        overwrite=overwrite,
        finish=lambda folder: write_baked_card(loaded, factor, folder),
        on_progress=lambda done, total: out.progress("Baking", done, total, "files"),
    )
    size = sum(path.stat().st_size for path in output.iterdir())
    out.result(
        {"path": str(output), "scale": factor, "edited": loaded.config.held, "bytes": size},
        human=f"{loaded.config.held:,} weights multiplied by {factor:g}\nSaved {output} ({size / 1e6:,.1f} MB)",
        quiet=str(output),
    )


app.command(no_args_is_help=True)(export.export)
