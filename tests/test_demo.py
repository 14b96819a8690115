"""The demonstration on the bundled model: the paper's main figure, and everything that it saves."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from mathneuro_hub import NeurosurgeryAdapter, NeurosurgeryModel, find_base
from mathneuro_hub.demo import FOLDER, MODEL_FOLDER, SETS_FOLDER, TASKS, TASKS_FOLDER, texts
from mathneuro_hub.demo.train import write_texts
from mathneuro_hub.evaluation import EvaluationRun, load_reports

NON_MATH = [task for task, kind in TASKS.items() if kind == "non_math"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    code = "from mathneuro_hub_cli.main import run; run()"
    finished = subprocess.run(
        [sys.executable, "-c", code, "demo", "-o", str(out), "--format", "json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def score(shown, label, task):
    return shown["results"][label][task]["score"]


def test_the_base_has_every_skill(shown):
    assert shown["tasks"] == TASKS
    for task in TASKS:
        assert score(shown, "base", task) >= 0.95
        assert shown["results"]["base"][task]["n"] >= 120


def test_pruning_by_mathneuro_takes_math_and_leaves_the_rest(shown):
    assert score(shown, "mathneuro_pruned", "demo_math") <= 0.25
    for task in NON_MATH:
        assert abs(score(shown, "mathneuro_pruned", task) - score(shown, "base", task)) <= 0.05


def test_pruning_as_many_at_random_changes_nothing(shown):
    assert shown["masks"]["random"]["count"] == shown["masks"]["mathneuro"]["count"]
    for task in TASKS:
        assert abs(score(shown, "random_pruned", task) - score(shown, "base", task)) <= 0.03


def test_pruning_without_the_subtraction_harms_the_rest(shown):
    def mean(label):
        return sum(score(shown, label, task) for task in NON_MATH) / len(NON_MATH)

    assert mean("wanda_pruned") < mean("mathneuro_pruned") - 0.1


def test_masks_are_compact(shown):
    """Below the entropy of a mask of the same density whose entries were drawn independently."""
    for method in ("mathneuro", "wanda"):
        mask = shown["masks"][method]
        p = mask["density"]
        entropy = -math.log2(p) - (1 - p) / p * math.log2(1 - p)
        assert mask["bits_per_weight"] < entropy, method
    assert shown["masks"]["mathneuro"]["bytes"] < 2 * shown["masks"]["mathneuro"]["count"]


def test_everything_that_was_saved_can_be_used(shown):
    files = {what: Path(path) for what, path in shown["files"].items()}
    assert all(path.exists() for path in files.values())
    assert shown["reloaded_equal"] is True
    base = find_base("demo")
    adapter = NeurosurgeryAdapter.from_pretrained(files["adapter"])
    assert adapter.config.held == shown["masks"]["mathneuro"]["count"]
    attached = NeurosurgeryModel.from_pretrained(base.load(), adapter, scale=0.0).merge_and_unload().state_dict()
    baked = AutoModelForCausalLM.from_pretrained(files["baked_model"]).state_dict()
    assert all((attached[name] == baked[name]).all() for name in attached)
    strengthened, pruned = load_reports(files["adapter"] / "eval_results.json")
    assert (strengthened.scale, pruned.scale) == (1.1, 0.0)
    assert f"{pruned.edited.tasks['demo_math'].primary.score:.3f}" in files["card"].read_text()
    runs = json.loads(files["results"].read_text())["runs"]
    assert EvaluationRun.from_dict(runs["base"]).tasks["demo_math"].primary.score == score(shown, "base", "demo_math")
    png = files["figure"].read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (1050, 690)


def test_what_ships_is_small_and_can_be_made_again(tmp_path):
    stored = sum(path.stat().st_size for path in MODEL_FOLDER.iterdir())
    assert stored < 4_000_000
    write_texts(tmp_path)
    for folder, made in ((SETS_FOLDER, tmp_path / "sets"), (TASKS_FOLDER, tmp_path / "tasks")):
        for path in made.iterdir():
            assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
    record = json.loads((MODEL_FOLDER / "training.json").read_text())
    assert min(record["held_out_accuracy"].values()) >= 0.95
    assert {path.name for path in FOLDER.glob("tasks/*.yaml")} == {f"{task}.yaml" for task in TASKS}


def test_no_sum_of_the_evaluation_was_trained_or_calibrated_on():
    trained, held_out = set(texts.sum_pairs(held_out=False)), set(texts.sum_pairs(held_out=True))
    assert not trained & held_out
    assert len(trained | held_out) == 8100
    asked = {json.loads(line)["prompt"] for line in (TASKS_FOLDER / "math.jsonl").read_text().splitlines()}
    calibrated = [json.loads(line)["text"] for line in (SETS_FOLDER / "math.jsonl").read_text().splitlines()]
    assert len(asked) == 200
    assert not any(text.startswith(prompt) for text in calibrated for prompt in asked)
