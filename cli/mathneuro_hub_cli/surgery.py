"""``mathneuro surgery``: make adapters and bake them."""

from __future__ import annotations

from typing import Annotated

import typer

from mathneuro_hub_cli import export, options, push, share
from mathneuro_hub_cli.making import AdapterMaker
from mathneuro_hub_cli.options import Method
from mathneuro_hub_cli.output import Format, Output

app = typer.Typer(help="Create adapters, bake them into checkpoints, and share them.", no_args_is_help=True)


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
    keep_ratio: options.KeepRatio = 0.05,
    contrast_keep_ratio: options.ContrastKeepRatio = None,
    scale: Annotated[float, typer.Option(help="Recommended scale: 0 prunes, 1.1 strengthens a little.")] = 1.1,
    method: options.MethodChoice = Method.mathneuro,
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
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.files import check_free
    from mathneuro_hub.publishing.card import save_adapter

    out = Output(form)
    maker = AdapterMaker(
        skill=skill,
        contrasts=tuple(contrast or ()),
        keep_ratio=keep_ratio,
        contrast_keep_ratio=contrast_keep_ratio,
        scale=scale,
        method=method.value,
        num_samples=num_samples,
        seed=seed,
        replacement=replacement,
        chat_template=chat_template,
        max_length=max_length,
        batch_size=batch_size,
        include_lm_head=include_lm_head,
        dtype=dtype,
        device=device,
        device_map=device_map,
        use_cache=not no_cache,
    )
    maker.check()
    check_free(output, overwrite)
    base = find_base(model, revision)
    adapter = maker.make(base, out).adapter
    save_adapter(adapter, output, overwrite=overwrite, base_card=base.card)
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
    adapter: options.Adapter,
    output: options.OutFolder,
    model: options.BaseOfAdapter = None,
    revision: options.Revision = None,
    scale: options.ScaleOfAdapter = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Write the edited model as a plain checkpoint folder that transformers loads.

    Example: mathneuro surgery bake -a math/ --scale 0 -o without-math/
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, bake
    from mathneuro_hub.publishing.card import write_baked_card

    out = Output(form)
    loaded = NeurosurgeryAdapter.from_pretrained(adapter)
    factor = loaded.scale if scale is None else scale
    base = loaded.find_base(model, revision)
    bake(
        base,
        loaded,
        output,
        scale=factor,
        overwrite=overwrite,
        finish=lambda folder: write_baked_card(loaded, factor, folder, name=output.resolve().name, base_card=base.card),
        on_progress=lambda done, total: out.progress("Baking", done, total, "files"),
    )
    size = sum(path.stat().st_size for path in output.iterdir())
    out.result(
        {"path": str(output), "scale": factor, "edited": loaded.config.held, "bytes": size},
        human=f"{loaded.config.held:,} weights multiplied by {factor:g}\nSaved {output} ({size / 1e6:,.1f} MB)",
        quiet=str(output),
    )


app.command(no_args_is_help=True)(export.export)
app.command(no_args_is_help=True)(push.push)
app.command(no_args_is_help=True)(share.pull)
app.command("list", no_args_is_help=True)(share.list_published)
app.command(no_args_is_help=True)(share.show)
