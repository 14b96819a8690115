"""Random: as many entries per weight as a given mask set holds, drawn at random. The control of every edit."""

from __future__ import annotations

import hashlib

import torch

from mathneuro_hub.masks import Mask, MaskSet, top_k


def random(like: MaskSet, seed: int) -> MaskSet:
    """A mask set with the same count per weight as ``like``.

    The draw of one weight depends on ``seed`` and its name alone, so that leaving a weight out changes no other.
    """
    masks = {}
    for name, mask in like.items():
        key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
        order = torch.rand(mask.shape, generator=generator)
        masks[name] = Mask.from_dense(top_k(order, torch.ones(mask.shape[1]), [mask.held])[0])
    return MaskSet(masks)
