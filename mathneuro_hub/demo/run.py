"""The demonstration: calibrate the bundled model, find the weights of its math, edit them, and measure what changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryModel, bake, create_adapter
from mathneuro_hub.adapter.config import MASKS_FILE
from mathneuro_hub.base_model import DEMO, find_base
from mathneuro_hub.calibration.calibrator import Calibrator
from mathneuro_hub.demo import TASKS, TASKS_FOLDER
from mathneuro_hub.demo.figure import draw
from mathneuro_hub.evaluation.harness import evaluate
from mathneuro_hub.evaluation.report import EvaluationReport
from mathneuro_hub.evaluation.results import EvaluationRun
from mathneuro_hub.files import replacing_folder
from mathneuro_hub.masks import stream_bytes
from mathneuro_hub.publishing.card import save_adapter, write_baked_card

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

KEEP_RATIO = 0.05
SCALE = 1.1
BATCH_SIZE = 64
METHODS = ("mathneuro", "wanda", "random")

Report = Callable[[str, int, int], None]
"""Called with (what is being done, done, in all)."""


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found.

    Attributes:
        runs: base, mathneuro_pruned, wanda_pruned, random_pruned and mathneuro_scaled.
        masks: method -> count, density, bits_per_weight and bytes of the masks file.
        files: what was saved, by what it is.
        reloaded_equal: the saved adapter, loaded in a fresh process, scored every question the same.
    """

    runs: dict[str, EvaluationRun]
    masks: dict[str, dict[str, float]]
    files: dict[str, str]
    reloaded_equal: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        results = {
            label: {
                name: {"score": task.primary.score, "stderr": task.primary.stderr, "n": task.primary.n}
                for name, task in run.tasks.items()
            }
            for label, run in self.runs.items()
        }
        return {
            "tasks": TASKS,
            "results": results,
            "masks": self.masks,
            "files": self.files,
            "reloaded_equal": self.reloaded_equal,
        }


def run_demo(out: Path, overwrite: bool = False, report: Report = lambda what, done, total: None) -> DemoResult:
    """Run it and fill ``out`` with adapters, a baked model, results and a figure.

    Args:
        out: folder to write; it appears only when complete.
        overwrite: replace ``out`` if it exists.
        report: progress.

    Raises:
        OutputError: ``out`` exists, or cannot be written.
    """
    with replacing_folder(out, overwrite) as aside:
        return _run(aside, out, report)


def _run(aside: Path, out: Path, report: Report) -> DemoResult:
    base = find_base(DEMO)
    calibrator = Calibrator(
        base, batch_size=BATCH_SIZE, use_cache=False, report=lambda name, *n: report(f"Calibrating on {name}", *n)
    )
    skill = calibrator.norms("demo:math")
    contrasts = [calibrator.norms("demo:capitals"), calibrator.norms("demo:grammar")]
    skill.save(aside / "norms" / "math.safetensors")
    for norms, name in zip(contrasts, ("capitals", "grammar"), strict=True):
        norms.save(aside / "norms" / f"{name}.safetensors")

    adapters = {
        method: create_adapter(
            base, method=method, skill=skill, contrasts=contrasts, keep_ratio=KEEP_RATIO, scale=SCALE
        )
        for method in METHODS
    }
    model, tokenizer = calibrator.model, calibrator.tokenizer
    score = partial(_score, model, tokenizer, report)
    runs = {"base": score("base")}
    for method, adapter in adapters.items():
        runs[f"{method}_pruned"] = _edited(model, adapter, 0.0, partial(score, f"{method}_pruned"))
    runs["mathneuro_scaled"] = _edited(model, adapters["mathneuro"], SCALE, partial(score, "mathneuro_scaled"))

    pruned = EvaluationReport(runs["base"], runs["mathneuro_pruned"], 0.0, runs["random_pruned"])
    strengthened = EvaluationReport(runs["base"], runs["mathneuro_scaled"], SCALE)
    masks = {}
    for method, adapter in adapters.items():
        folder = aside / f"adapter-{method}"
        save_adapter(adapter, folder, results=[strengthened, pruned] if method == "mathneuro" else [])
        masks[method] = _mask_numbers(adapter, folder / MASKS_FILE)
    bake(
        base,
        adapters["mathneuro"],
        aside / "baked-pruned",
        scale=0.0,
        finish=lambda folder: write_baked_card(adapters["mathneuro"], 0.0, folder, results=[pruned]),
    )
    draw(runs, aside / "figure.png")
    report("Loading the saved adapter in a fresh process", 0, 1)
    reloaded_equal = _scores_in_fresh_process(aside / "adapter-mathneuro") == _values(runs["mathneuro_pruned"])
    report("Loading the saved adapter in a fresh process", 1, 1)
    files = {
        "adapter": "adapter-mathneuro",
        "card": "adapter-mathneuro/README.md",
        "baked_model": "baked-pruned",
        "figure": "figure.png",
        "results": "results.json",
        "norms": "norms",
    }
    result = DemoResult(runs, masks, {what: str(out / path) for what, path in files.items()}, reloaded_equal)
    details = {label: run.to_dict() for label, run in runs.items()}
    (aside / "results.json").write_text(json.dumps(result.to_dict() | {"runs": details}, indent=1), encoding="utf-8")
    return result


def _score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, report: Report, label: str) -> EvaluationRun:
    return evaluate(
        model,
        tokenizer,
        list(TASKS),
        include_path=TASKS_FOLDER,
        batch_size=BATCH_SIZE,
        label=label,
        model_name=DEMO,
        on_progress=partial(report, f"Evaluating {label}"),
    )


def _edited(
    model: PreTrainedModel, adapter: NeurosurgeryAdapter, scale: float, score: Callable[[], EvaluationRun]
) -> EvaluationRun:
    attached = NeurosurgeryModel.from_pretrained(model, adapter, scale=scale)
    try:
        return score()
    finally:
        attached.unload()


def _mask_numbers(adapter: NeurosurgeryAdapter, file: Path) -> dict[str, float]:
    held = adapter.config.held
    return {
        "count": held,
        "density": adapter.config.density,
        "bits_per_weight": 8 * stream_bytes(file) / held,
        "bytes": file.stat().st_size,
    }


def _values(run: EvaluationRun) -> dict[str, dict[str, float]]:
    return {name: dict(task.primary.values) for name, task in run.tasks.items()}


def _scores_in_fresh_process(adapter: Path) -> Any:
    command = [sys.executable, "-m", "mathneuro_hub.demo.run", str(adapter)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def _main(adapter: str) -> None:
    """Score a saved adapter of the bundled model at scale 0 and print the value of every question."""
    base = find_base(DEMO)
    model, tokenizer = base.load(), base.tokenizer()
    NeurosurgeryModel.from_pretrained(model, adapter, scale=0.0)
    print(json.dumps(_values(_score(model, tokenizer, lambda what, done, total: None, "reloaded"))))


if __name__ == "__main__":
    _main(sys.argv[1])
