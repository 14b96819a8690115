"""The method written plainly, slowly and on its own: what every fast path of the library has to equal.

One sample at a time, norms summed in fp64 and rounded once to fp32, full fp32 score matrices, a full stable sort.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


def norms(model: nn.Module, tokenizer: Any, texts: tuple[str, ...]) -> dict[str, Tensor]:
    """Weight name -> fp32 [in], for every Linear and Conv1D; each weight with a hook of its own."""
    sums: dict[str, Tensor] = {}
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):

            def hook(_: Any, args: Any, name: str = f"{path}.weight") -> None:
                x = args[0].reshape(-1, args[0].shape[-1]).double()
                norm = (x * x).sum(0).sqrt()
                sums[name] = sums.get(name, torch.zeros_like(norm)) + norm

            handles.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        for text in texts:
            model(input_ids=torch.tensor([tokenizer(text)["input_ids"]]))
    for handle in handles:
        handle.remove()
    return {name: total.float() for name, total in sums.items()}


def kept(values: Tensor, norm: Tensor, keep_ratio: float) -> set[int]:
    """Flat positions of the int(keep_ratio * numel) highest |W| * a, ties by the lowest position."""
    scores = (values.float().abs() * norm).flatten()
    order = sorted(range(scores.numel()), key=lambda i: (-scores[i].item(), i))
    return set(order[: int(keep_ratio * scores.numel())])


def mathneuro(
    values: Tensor, skill: Tensor, contrasts: list[Tensor], keep_ratio: float, contrast_ratio: float
) -> set[int]:
    """Kept for the skill, minus kept for any contrast."""
    held = kept(values, skill, keep_ratio)
    for contrast in contrasts:
        held -= kept(values, contrast, contrast_ratio)
    return held
