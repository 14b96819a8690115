"""What an adapter is, as a table: `mask show` and `surgery show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathneuro_hub_cli.output import table

if TYPE_CHECKING:
    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.masks import MaskSet


@dataclass(frozen=True)
class AdapterView:
    """An adapter, where its files lie, and what there is to say of it."""

    adapter: NeurosurgeryAdapter
    folder: Path
    data: dict[str, Any]
    human: str


def adapter_view(place: str, **where: Any) -> AdapterView:
    """An adapter by folder or Hub id; ``where`` as for ``find_adapter``."""
    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.adapter.config import MASKS_FILE
    from mathneuro_hub.adapter.location import find_adapter
    from mathneuro_hub.masks import stream_bytes

    folder = find_adapter(place, **where)
    adapter = NeurosurgeryAdapter.from_pretrained(folder)
    config, masks = adapter.config, adapter.masks
    size = (folder / MASKS_FILE).stat().st_size
    streams = stream_bytes(folder / MASKS_FILE)
    bits = 8 * streams / max(1, config.held)
    layers, kinds = masks.by_layer(), masks.by_kind()
    left_out = table(
        ("left out", "parameters", "reason"), [(name, f"{numel:,}", reason) for name, numel, reason in config.left_out]
    )
    parameters = ", ".join(f"{name} {value}" for name, value in config.parameters.items())
    data = {
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
    }
    human = "\n".join(
        (
            f"{config.method} ({parameters}) on {config.base_model_name_or_path}, recommended scale {config.scale:g}",
            f"{config.held:,} weights held: {config.density:.3%} of {config.covered:,} covered, "
            f"{config.held / config.total:.3%} of {config.total:,} in the model",
            f"masks file {size:,} bytes, index streams {streams:,} bytes: {bits:.2f} bits per held weight",
            "",
            _shares(config.held, layers, "layer"),
            "",
            _shares(config.held, kinds, "kind"),
            "",
            left_out,
        )
    )
    return AdapterView(adapter, folder, data, human)


def _shares(held: int, groups: dict[str, MaskSet], title: str) -> str:
    rows = [
        (name, f"{part.held:,}", f"{part.density:.3%}", f"{part.held / max(1, held):.1%}")
        for name, part in groups.items()
    ]
    return table((title, "held", "density", "share of mask"), rows)
