"""``mathneuro mask``: look at masks, compare and combine them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output, table

if TYPE_CHECKING:
    from mathneuro_hub.masks import MaskSet

app = typer.Typer(help="Show, compare and combine masks.", no_args_is_help=True)


class Operation(StrEnum):
    """How masks are combined."""

    union = "union"
    intersect = "intersect"
    difference = "difference"


@app.command(no_args_is_help=True)
def show(
    path: Annotated[Path, typer.Argument(help="Adapter folder, or norms file.")],
    form: options.OutputFormat = Format.human,
) -> None:
    """Show what an adapter edits, or what a norms file was taken on.

    Example: mathneuro mask show math/
    """
    out = Output(form)
    if path.suffix == ".safetensors":
        _show_norms(path, out)
    else:
        _show_adapter(path, out)


def _show_adapter(path: Path, out: Output) -> None:
    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.adapter.config import MASKS_FILE
    from mathneuro_hub.masks import stream_bytes

    adapter = NeurosurgeryAdapter.from_pretrained(path)
    config, masks = adapter.config, adapter.masks
    size = (path / MASKS_FILE).stat().st_size
    streams = stream_bytes(path / MASKS_FILE)
    bits = 8 * streams / max(1, config.held)
    layers, kinds = masks.by_layer(), masks.by_kind()

    def shares(groups: dict[str, MaskSet], title: str) -> str:
        rows = [
            (name, f"{part.held:,}", f"{part.density:.3%}", f"{part.held / max(1, config.held):.1%}")
            for name, part in groups.items()
        ]
        return table((title, "held", "density", "share of mask"), rows)

    left_out = table(
        ("left out", "parameters", "reason"), [(name, f"{numel:,}", reason) for name, numel, reason in config.left_out]
    )
    parameters = ", ".join(f"{name} {value}" for name, value in config.parameters.items())
    out.result(
        {
            "method": config.method,
            "parameters": dict(config.parameters),
            "scale": config.scale,
            "base_model": config.base_model_name_or_path,
            "revision": config.revision,
            "held": config.held,
            "covered": config.covered,
            "total": config.total,
            "density": config.density,
            "bytes": size,
            "bits_per_weight": bits,
            "by_layer": {name: {"held": part.held, "numel": part.numel} for name, part in layers.items()},
            "by_kind": {name: {"held": part.held, "numel": part.numel} for name, part in kinds.items()},
            "left_out": [{"name": n, "numel": numel, "reason": reason} for n, numel, reason in config.left_out],
        },
        human="\n".join(
            (
                f"{config.method} ({parameters}) on {config.base_model_name_or_path}, recommended scale {config.scale:g}",
                f"{config.held:,} weights held: {config.density:.3%} of {config.covered:,} covered, "
                f"{config.held / config.total:.3%} of {config.total:,} in the model",
                f"masks file {size:,} bytes, index streams {streams:,} bytes: {bits:.2f} bits per held weight",
                "",
                shares(layers, "layer"),
                "",
                shares(kinds, "kind"),
                "",
                left_out,
            )
        ),
        quiet=str(config.held),
    )


def _show_norms(path: Path, out: Output) -> None:
    from mathneuro_hub.calibration.norms import ActivationNorms

    norms = ActivationNorms.load(path)
    model = norms.provenance.get("model", {})
    out.result(
        {
            "samples": norms.samples,
            "tokens": norms.tokens,
            "truncated": norms.truncated,
            "weights": len(norms.sites),
            "inputs": len(norms.vectors),
            "provenance": dict(norms.provenance),
        },
        human=f"Activation norms of {norms.name} on {model.get('name')}\n"
        f"{norms.samples} samples, {norms.tokens:,} tokens, {norms.truncated} cut at the length cap\n"
        f"{len(norms.sites)} weights fed by {len(norms.vectors)} inputs",
        quiet=str(norms.samples),
    )


@app.command(no_args_is_help=True)
def compare(
    a: Annotated[Path, typer.Argument(help="Adapter folder, or norms file.")],
    b: Annotated[Path, typer.Argument(help="Another of the same base.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model; needed for norms files.", show_default=False)
    ] = None,
    keep_ratio: Annotated[float, typer.Option(help="For norms files: share of each weight to keep.")] = 0.05,
    form: options.OutputFormat = Format.human,
) -> None:
    """Compare two masks: Jaccard overlap, with the overlap that chance alone would give.

    Two norms files are compared by the top weights that each would keep.

    Example: mathneuro mask compare math/ other/
    """
    masks_a, masks_b = (_masks_of(path, model, keep_ratio) for path in (a, b))
    shared = (masks_a & masks_b).held
    jaccard, chance = masks_a.jaccard(masks_b), masks_a.chance_jaccard(masks_b)
    kinds_b = masks_b.by_kind()
    kinds = {
        kind: (part.jaccard(kinds_b[kind]), part.chance_jaccard(kinds_b[kind]))
        for kind, part in masks_a.by_kind().items()
    }
    Output(form).result(
        {
            "held": [masks_a.held, masks_b.held],
            "shared": shared,
            "jaccard": jaccard,
            "chance_jaccard": chance,
            "by_kind": {kind: {"jaccard": j, "chance_jaccard": c} for kind, (j, c) in kinds.items()},
        },
        human=f"{masks_a.held:,} and {masks_b.held:,} weights held, {shared:,} by both\n"
        f"Jaccard {jaccard:.4f} (chance {chance:.4f})\n\n"
        + table(("kind", "Jaccard", "chance"), [(k, f"{j:.4f}", f"{c:.4f}") for k, (j, c) in kinds.items()]),
        quiet=f"{jaccard:.6f}",
    )


def _masks_of(path: Path, model: str | None, keep_ratio: float) -> MaskSet:
    from mathneuro_hub.adapter import NeurosurgeryAdapter

    if path.suffix != ".safetensors":
        return NeurosurgeryAdapter.from_pretrained(path).masks
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.calibration.norms import ActivationNorms
    from mathneuro_hub.errors import SettingError
    from mathneuro_hub.methods import wanda

    if model is None:
        raise SettingError(f"{path} is a norms file; give the base whose top weights to compare (--model).")
    base = find_base(model)
    norms = ActivationNorms.load(path)
    norms.check_model(base.fingerprint, base.name)
    settings = norms.provenance.get("settings", {})
    return wanda(base.weights, base.coverage(bool(settings.get("include_lm_head"))), norms, keep_ratio)


@app.command(no_args_is_help=True)
def combine(
    a: Annotated[Path, typer.Argument(help="Adapter folder.")],
    b: Annotated[Path, typer.Argument(help="Another of the same base.")],
    output: options.OutFolder,
    op: Annotated[Operation, typer.Option(help="union: either; intersect: both; difference: A without B.")],
    scale: Annotated[float | None, typer.Option(help="Recommended scale.", show_default="A's")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model.", show_default="the one the adapters name")
    ] = None,
    revision: options.Revision = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Combine two adapters of one base into a new adapter.

    Example: mathneuro mask combine math/ other/ --op difference -o only-math/
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, combine_adapters
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.files import check_free
    from mathneuro_hub.publishing.card import save_adapter

    check_free(output, overwrite)
    first, second = NeurosurgeryAdapter.from_pretrained(a), NeurosurgeryAdapter.from_pretrained(b)
    base = find_base(model or first.config.base_model_name_or_path, revision or first.config.revision)
    combined = combine_adapters(base, first, second, op.value, first.scale if scale is None else scale)
    save_adapter(combined, output, overwrite=overwrite)
    config = combined.config
    Output(form).result(
        {"path": str(output), "held": config.held, "density": config.density, "scale": config.scale},
        human=f"{config.held:,} weights held ({op.value} of {first.config.held:,} and {second.config.held:,})\n"
        f"Saved {output}",
        quiet=str(output),
    )
