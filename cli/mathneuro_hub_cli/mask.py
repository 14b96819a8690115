"""``mathneuro mask``: look at masks, compare and combine them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.output import Format, Output, table
from mathneuro_hub_cli.views import adapter_view

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
    place: Annotated[str, typer.Argument(metavar="ADAPTER", help="Adapter folder or Hub id, or norms file.")],
    form: options.OutputFormat = Format.human,
) -> None:
    """Show what an adapter edits, or what a norms file was taken on.

    Example: mathneuro mask show math/
    """
    out = Output(form)
    if place.endswith(".safetensors"):
        _show_norms(Path(place), out)
    else:
        view = adapter_view(place)
        out.result(view.data, view.human, quiet=str(view.adapter.config.held))


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
    a: Annotated[str, typer.Argument(help="Adapter folder or Hub id, or norms file.")],
    b: Annotated[str, typer.Argument(help="Another of the same base.")],
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
    masks_a, masks_b = (_masks_of(place, model, keep_ratio) for place in (a, b))
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


def _masks_of(place: str, model: str | None, keep_ratio: float) -> MaskSet:
    from mathneuro_hub.adapter import NeurosurgeryAdapter

    if not place.endswith(".safetensors"):
        return NeurosurgeryAdapter.from_pretrained(place).masks
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.calibration.norms import ActivationNorms
    from mathneuro_hub.errors import SettingError
    from mathneuro_hub.methods import wanda

    if model is None:
        raise SettingError(f"{place} is a norms file; give the base whose top weights to compare (--model).")
    base = find_base(model)
    norms = ActivationNorms.load(Path(place))
    norms.check_model(base.fingerprint, base.name)
    settings = norms.provenance.get("settings", {})
    return wanda(base.weights, base.coverage(bool(settings.get("include_lm_head"))), norms, keep_ratio)


@app.command(no_args_is_help=True)
def combine(
    a: Annotated[str, typer.Argument(help="Adapter folder or Hub id.")],
    b: Annotated[str, typer.Argument(help="Another of the same base.")],
    output: options.OutFolder,
    op: Annotated[Operation, typer.Option(help="union: either; intersect: both; difference: A without B.")],
    scale: Annotated[float | None, typer.Option(help="Recommended scale.", show_default="A's")] = None,
    model: options.BaseOfAdapter = None,
    revision: options.Revision = None,
    overwrite: options.Overwrite = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Combine two adapters of one base into a new adapter.

    Example: mathneuro mask combine math/ other/ --op difference -o only-math/
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter, combine_adapters
    from mathneuro_hub.files import check_free
    from mathneuro_hub.publishing.card import save_adapter

    check_free(output, overwrite)
    first, second = NeurosurgeryAdapter.from_pretrained(a), NeurosurgeryAdapter.from_pretrained(b)
    base = first.find_base(model, revision)
    combined = combine_adapters(base, first, second, op.value, first.scale if scale is None else scale)
    save_adapter(combined, output, overwrite=overwrite, base_card=base.card)
    config = combined.config
    Output(form).result(
        {"path": str(output), "held": config.held, "density": config.density, "scale": config.scale},
        human=f"{config.held:,} weights held ({op.value} of {first.config.held:,} and {second.config.held:,})\n"
        f"Saved {output}",
        quiet=str(output),
    )
