"""Top-k, mask algebra and codec on one weight of [8192, 2048], the MLP of a 1B Llama."""

from __future__ import annotations

import math

import torch
from measure import Row, interleaved, medians, ratio

from mathneuro_hub.masks import Mask, decode, encode, keep_count, top_k

SHAPE = (8192, 2048)
RATIOS = (0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15)
KEEP_RATIO = 0.05


def column_entropy(mask: Mask) -> float:
    """Bits to tell the rows of every column, once its count is known."""
    out, counts = mask.shape[0], mask.counts.to(torch.float64)
    choose = math.lgamma(out + 1) - torch.lgamma(counts + 1) - torch.lgamma(out - counts + 1)
    return float(choose.sum()) / math.log(2)


def rows() -> list[Row]:
    torch.manual_seed(0)
    weight = torch.randn(SHAPE).mul_(0.02).to(torch.bfloat16)
    skill = torch.randn(SHAPE[1]).exp()
    contrast = skill * torch.randn(SHAPE[1]).mul(0.3).exp()
    numel = weight.numel()
    count = keep_count(KEEP_RATIO, numel)
    counts = [keep_count(r, numel) for r in RATIOS]

    def specific() -> Mask:
        return Mask.from_dense(top_k(weight, skill, [count])[0] & ~top_k(weight, contrast, [count])[0])

    times = interleaved(
        {
            "read": lambda: weight.view(torch.int64).sum(),
            "one": lambda: top_k(weight, skill, [count]),
            "several": lambda: top_k(weight, skill, counts),
            "skill - contrast": specific,
            "torch.topk": lambda: (weight.float().abs() * skill).flatten().topk(count),
        }
    )
    taken = {name: seconds / numel * 1e9 for name, seconds in medians(times).items()}
    faster = 2 / ratio(times, "skill - contrast", "torch.topk")
    several = ratio(times, "several", "one")
    found = [
        Row(
            "skill and contrast top-k, subtraction, mask (8192 x 2048, bf16)",
            f"{taken['skill - contrast']:.2f} ns a parameter, {faster:.1f}x torch.topk twice",
            "2 ns a parameter; 10x torch.topk",
            taken["skill - contrast"] <= 2 and faster >= 10,
            taken,
        ),
        Row("top-k at 8 keep ratios in one go", f"{several:.2f}x one ratio", "1.5x one ratio", several < 1.5, taken),
    ]
    masks = {
        "skill - contrast": specific(),
        "independent, density .05": Mask.from_dense(torch.rand(SHAPE) < 0.05),
        "independent, density .01": Mask.from_dense(torch.rand(SHAPE) < 0.01),
    }
    # Many small array operations: more threads than one only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, mask in masks.items():
        stream = encode(mask)
        speed = medians(interleaved({"decode": lambda s=stream: decode(s, SHAPE), "encode": lambda m=mask: encode(m)}))  # type: ignore[misc]
        bits = 8 * stream.numel()
        rates = {step: mask.held / seconds / 1e6 for step, seconds in speed.items()}
        over = bits / column_entropy(mask)
        found += [
            Row(
                f"mask file: {name}",
                f"{bits / mask.held:.2f} bits a held weight, {over:.3f}x the column-conditional entropy",
                "1.2x",
                over <= 1.2,
                {"held": mask.held, "bits": bits},
            ),
            Row(
                f"decode: {name}",
                f"{rates['decode']:.0f} M indices a second (encode {rates['encode']:.0f} M)",
                "50 M a core; encode at least half as fast",
                rates["decode"] >= 50 and rates["encode"] >= rates["decode"] / 2,
                rates,
            ),
        ]
    torch.set_num_threads(threads)
    return found
