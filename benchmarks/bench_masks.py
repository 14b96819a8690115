"""Top-k, mask algebra and codec on one weight of [8192, 2048]: prints times, and ratios within this run.

python benchmarks/bench_masks.py [threads]
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable

import torch

from mathneuro_hub.masks import Mask, decode, encode, keep_count, top_k

SHAPE = (8192, 2048)
RATIOS = (0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15)
REPEATS = 5


def interleaved(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each step, the steps taking turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPEATS):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def column_entropy(mask: Mask) -> float:
    """Bits to tell the rows of every column, once its count is known."""
    out, counts = mask.shape[0], mask.counts.to(torch.float64)
    choose = math.lgamma(out + 1) - torch.lgamma(counts + 1) - torch.lgamma(out - counts + 1)
    return float(choose.sum()) / math.log(2)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    torch.manual_seed(0)
    weight = torch.randn(SHAPE).mul_(0.02).to(torch.bfloat16)
    skill = torch.randn(SHAPE[1]).exp()
    contrast = skill * torch.randn(SHAPE[1]).mul(0.3).exp()
    numel = weight.numel()
    counts = [keep_count(ratio, numel) for ratio in RATIOS]
    count = counts[5]

    def specific() -> Mask:
        return Mask.from_dense(top_k(weight, skill, [count])[0] & ~top_k(weight, contrast, [count])[0])

    times = interleaved(
        {
            "read the weight": lambda: weight.view(torch.int64).sum(),
            "top_k": lambda: top_k(weight, skill, [count]),
            f"top_k, {len(RATIOS)} ratios": lambda: top_k(weight, skill, counts),
            "skill - contrast, as a mask": specific,
            "torch.topk": lambda: (weight.float().abs() * skill).flatten().topk(count),
        }
    )
    print(f"{torch.get_num_threads()} threads, {list(SHAPE)} bfloat16, keep ratio {RATIOS[5]}")
    for name, seconds in times.items():
        print(f"{name:30s} {seconds / numel * 1e9:8.2f} ns/parameter {times['torch.topk'] / seconds:8.1f} x torch.topk")
    masks = {
        "kept for the skill": Mask.from_dense(top_k(weight, skill, [count])[0]),
        "skill - contrast": specific(),
        "independent, density .05": Mask.from_dense(torch.rand(SHAPE) < 0.05),
        "independent, density .01": Mask.from_dense(torch.rand(SHAPE) < 0.01),
    }
    for name, mask in masks.items():
        stream = encode(mask)
        times = interleaved({"decode": lambda s=stream: decode(s, SHAPE), "encode": lambda m=mask: encode(m)})  # type: ignore[misc]
        bits = 8 * stream.numel()
        print(
            f"{name:30s} {bits / mask.held:6.3f} bits/held {bits / column_entropy(mask):6.3f} x column entropy, "
            f"decode {mask.held / times['decode'] / 1e6:.0f} M/s, encode {mask.held / times['encode'] / 1e6:.0f} M/s"
        )


if __name__ == "__main__":
    main()
