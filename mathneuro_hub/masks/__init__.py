"""Masks: which entries of a model's weights, their algebra, exact top-k, and the file."""

from mathneuro_hub.masks.codec import decode, encode
from mathneuro_hub.masks.file import load_masks, save_masks, stream_bytes
from mathneuro_hub.masks.mask import Mask
from mathneuro_hub.masks.mask_set import MaskSet
from mathneuro_hub.masks.topk import keep_count, top_k, top_k_plain

__all__ = [
    "Mask",
    "MaskSet",
    "decode",
    "encode",
    "keep_count",
    "load_masks",
    "save_masks",
    "stream_bytes",
    "top_k",
    "top_k_plain",
]
