"""The figure of a card: which share of each kind of module is edited, layer by layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mathneuro_hub.masks import MaskSet

FIGURE_FILE = "edited_weights.png"


def draw(masks: MaskSet, path: Path) -> None:
    """Write the figure as PNG: a row per module kind, a column per layer, density in per cent; equal masks, equal bytes."""
    from matplotlib.figure import Figure

    layers, kinds = list(masks.by_layer()), list(masks.by_kind())
    shares = np.full((len(kinds), len(layers)), np.nan)
    for column, part in enumerate(masks.by_layer().values()):
        for kind, group in part.by_kind().items():
            shares[kinds.index(kind), column] = 100 * group.density
    figure = Figure(figsize=(max(4.0, min(14.0, 2.5 + 0.32 * len(layers))), 1.4 + 0.32 * len(kinds)), dpi=120)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="viridis", vmin=0, aspect="auto")
    step = max(1, len(layers) // 16)
    axes.set_xticks(range(0, len(layers), step), [_plain(layer) for layer in layers[::step]])
    axes.set_yticks(range(len(kinds)), [_plain(kind) for kind in kinds])
    axes.set(xlabel="Layer", title="Edited weights")
    figure.colorbar(image, ax=axes, label="% of the weight")
    figure.savefig(path, metadata={"Software": None})


def _plain(name: str) -> str:
    """A label that matplotlib does not read as mathematics."""
    return name[:40].replace("$", r"\$")
