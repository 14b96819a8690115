"""Calibration, attach, bake and masks from shards, on random models of real shapes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import Row, interleaved, medians, ratio
from transformers import AutoModelForCausalLM, LlamaConfig

from mathneuro_hub import NeurosurgeryModel, bake, create_adapter, find_base, find_weights
from mathneuro_hub.calibration import run as calibration

LLAMA_1B = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_100M = {
    "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 12, "tie_word_embeddings": True,
}  # fmt: skip
# Quartiles of GSM8K's training texts (question and answer) in Llama 3's tokens, as a batch sorted by length has them.
LENGTHS = (190, 180, 170, 165, 160, 155, 150, 145)


def build(shape: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        return AutoModelForCausalLM.from_config(LlamaConfig(**shape)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def calibration_row(name: str, shape: dict[str, Any], repeats: int) -> Row:
    model = build(shape)
    ids = torch.randint(0, shape["vocab_size"], (len(LENGTHS), max(LENGTHS)))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    coverage = find_weights(model)

    @torch.no_grad()
    def plain() -> None:
        model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)

    @torch.no_grad()
    def with_norms() -> None:
        run = calibration._Run(coverage)
        with run.attached(model):
            run.begin(mask, torch.ones(len(LENGTHS), dtype=torch.float64))
            model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)

    times = interleaved({"plain": plain, "norms": with_norms}, repeats)
    over = ratio(times, "norms", "plain")
    return Row(
        f"calibration, {name} bf16, batch of 8", f"{over:.3f}x a forward pass", "1.03x", over <= 1.03, medians(times)
    )


def edit_rows(folder: Path) -> list[Row]:
    base = find_base(folder)
    adapter = create_adapter(base, method="magnitude", keep_ratio=11e6 / 973e6)
    model = base.load(device="cpu")
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        attached = NeurosurgeryModel.from_pretrained(model, adapter, scale=1.1)
        seconds.append(time.perf_counter() - start)
        if len(seconds) < 2:
            attached.unload()
    first, again = seconds
    times = medians(interleaved({"set_scale": lambda: attached.set_scale(0.9)}, 3))
    attached.unload()
    held = adapter.config.held
    adapter.save_pretrained(folder.parent / "adapter", overwrite=True)
    return [
        Row(
            f"attach {held / 1e6:.1f} M edits, 1B shape, CPU",
            f"{again:.2f} s; {first:.1f} s on a model just loaded, whose pages are still the file's",
            "0.5 s",
            again <= 0.5,
            {"held": held, "first": first, "again": again},
        ),
        Row("set_scale of the same, CPU", f"{times['set_scale']:.2f} s", "(GPU: 5 ms)", None, times),
    ]


def bake_row(folder: Path) -> Row:
    size = sum(path.stat().st_size for path in folder.iterdir())
    ours, copies = [], []
    peak = 0.0
    for _ in range(3):
        for times, command in (
            (copies, ["cp", "-r", "--reflink=never", str(folder), str(folder.parent / "copy")]),
            (ours, None),
        ):
            for leftover in ("copy", "baked"):
                shutil.rmtree(folder.parent / leftover, ignore_errors=True)
            start = time.perf_counter()
            if command:
                subprocess.run(command, check=True)
                times.append(time.perf_counter() - start)
            else:
                finished = subprocess.run(
                    [sys.executable, __file__, "bake", str(folder)], check=True, capture_output=True, text=True
                )
                seconds, peak = (float(figure) for figure in finished.stdout.split()[-2:])
                times.append(seconds)
    over = sorted(a / b for a, b in zip(ours, copies, strict=True))[1]
    return Row(
        f"bake a {size / 1e9:.1f} GB checkpoint",
        f"{over:.2f}x cp; {peak:.0f} MB over the import",
        "1.15x cp; 400 MB",
        over <= 1.15 and peak <= 400,
        {"bake": ours, "cp": copies},
    )


def shards_row(folder: Path) -> Row:
    largest = LLAMA_1B["vocab_size"] * LLAMA_1B["hidden_size"] * 2 / 1e6
    finished = subprocess.run(
        [sys.executable, __file__, "masks", str(folder)], check=True, capture_output=True, text=True
    )
    seconds, peak = (float(figure) for figure in finished.stdout.split()[-2:])
    return Row(
        "masks of a 1B shape straight from shards, 49 M weights held",
        f"{seconds:.1f} s, {peak:.0f} MB over the import, the masks' own 195 MB included "
        f"({peak / largest:.1f}x the checkpoint's largest tensor)",
        "2x the largest tensor",
        peak <= 2 * largest,
        {"seconds": seconds, "megabytes": peak},
    )


def _alone(step: str, folder: Path) -> None:
    """Run one step in this process and print its seconds and the memory it took over the imports, in MB."""
    from mathneuro_hub import NeurosurgeryAdapter

    base = find_base(folder)
    base.coverage()
    before = _peak()
    start = time.perf_counter()
    if step == "bake":
        bake(base, NeurosurgeryAdapter.from_pretrained(folder.parent / "adapter"), folder.parent / "baked", scale=0.5)
    else:
        create_adapter(base, method="magnitude", keep_ratio=0.05)
    seconds = time.perf_counter() - start
    print(seconds, _peak() - before)


def _peak() -> float:
    """This process's own peak memory in MB; what getrusage gives a child includes its parent's."""
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) / 1024


def rows() -> list[Row]:
    found = [calibration_row("100 M Llama", LLAMA_100M, 7), calibration_row("1B Llama", LLAMA_1B, 5)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        build(LLAMA_1B).save_pretrained(folder, max_shard_size="1GB")
        found += edit_rows(folder)
        found += [bake_row(folder), shards_row(folder)]
    return found


if __name__ == "__main__":
    _alone(sys.argv[1], Path(sys.argv[2]))
