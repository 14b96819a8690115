"""Measure every step on this machine: `make bench`. Writes results/DEVICE.json and RESULTS.md beside this file."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import steps_masks
import steps_model
import torch

from mathneuro_hub.versions import versions

HERE = Path(__file__).parent
WORDS = {True: "yes", False: "no", None: ""}


def main() -> None:
    rows = [*steps_masks.rows(), *steps_model.rows()]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "versions": versions(),
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    record = {"machine": machine, "rows": [row.to_dict() for row in rows]}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "cpu.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Results",
        "",
        f"By `make bench` at commit {machine['commit']}, {machine['date']}: {machine['threads']} threads of "
        f"{machine['processor']}, torch {torch.__version__}. Medians of interleaved repeats; ratios are within one run.",
        "",
        "| step | measured | wanted | reached |",
        "| --- | --- | --- | --- |",
        *(f"| {row.step} | {row.value} | {row.reach} | {WORDS[row.reached]} |" for row in rows),
        "",
        "Not measured: every row that needs a GPU; none was at hand.",
    ]
    (HERE / "RESULTS.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
