"""The command line: what it prints, what it writes, and one sentence for every mistake of a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import models
import pytest
from mathneuro_hub_cli.failures import guarded
from mathneuro_hub_cli.main import app

from mathneuro_hub.adapter import NeurosurgeryAdapter

CREATE = [
    "surgery",
    "create",
    "-m",
    "demo",
    "--skill",
    "demo:math",
    "--contrast",
    "demo:capitals",
    "--num-samples",
    "40",
]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs the command line in this process, in an empty folder; gives exit status, stdout and stderr."""
    monkeypatch.setenv("MATHNEURO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def invoke(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = guarded(lambda: app(list(arguments)))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return invoke


def ok(result: tuple[int, str, str]) -> str:
    status, out, err = result
    assert status == 0, err
    return out


def refused(result: tuple[int, str, str], status: int = 1) -> str:
    found, out, err = result
    assert (found, out) == (status, ""), (found, out, err)
    assert "Traceback" not in err
    return err


def test_every_command_has_help_with_an_example(run):
    commands = [
        "calibrate",
        "eval",
        "demo",
        "surgery create",
        "surgery bake",
        "surgery push",
        "surgery pull",
        "surgery list",
        "surgery show",
        "mask show",
        "mask compare",
        "mask combine",
    ]
    for command in commands:
        text = ok(run(*command.split(), "--help"))
        assert f"Example: mathneuro {command}" in " ".join(text.split()), command
        assert "--format" in text
    assert "surgery" in ok(run("--help"))
    assert ok(run("--version")).startswith("mathneuro 0.")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['mathneuro', '--help']\n"
        "from mathneuro_hub_cli.failures import guarded; from mathneuro_hub_cli.main import app\n"
        "assert guarded(app) == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'datasets', 'lm_eval', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr


def test_calibrate_create_show_compare_combine_bake(run):
    for name in ("math", "capitals"):
        found = json.loads(
            ok(
                run(
                    "calibrate",
                    "-m",
                    "demo",
                    "-d",
                    f"demo:{name}",
                    "--num-samples",
                    "40",
                    "-o",
                    f"{name}.safetensors",
                    "--format",
                    "json",
                )
            )
        )
        assert found["samples"] == 40
        assert found["bytes"] == Path(f"{name}.safetensors").stat().st_size
    assert ok(run("mask", "show", "math.safetensors")).startswith("Activation norms of demo:math on demo\n40 samples")
    from_files = [
        "surgery",
        "create",
        "-m",
        "demo",
        "--skill",
        "math.safetensors",
        "--contrast",
        "capitals.safetensors",
    ]
    assert ok(run(*from_files, "-o", "a", "--format", "quiet")) == "a\n"
    created = json.loads(ok(run(*CREATE, "-o", "b", "--method", "wanda", "--format", "json")))
    assert ok(run(*CREATE, "-o", "c", "--format", "quiet")) == "c\n"
    assert (
        Path("a/neurosurgery_masks.safetensors").read_bytes() == Path("c/neurosurgery_masks.safetensors").read_bytes()
    )

    shown = json.loads(ok(run("mask", "show", "b", "--format", "json")))
    assert shown["held"] == created["held"] == sum(part["held"] for part in shown["by_kind"].values())
    assert shown["bytes"] == Path("b/neurosurgery_masks.safetensors").stat().st_size
    assert 0 < shown["bits_per_weight"] < 8
    assert {"name": "model.embed_tokens.weight", "numel": 27552, "reason": "embedding"} in shown["left_out"]
    text = ok(run("mask", "show", "b"))
    assert "bits per held weight" in text
    assert "model.embed_tokens.weight" in text

    compared = json.loads(ok(run("mask", "compare", "a", "b", "--format", "json")))
    assert compared["shared"] == NeurosurgeryAdapter.from_pretrained("a").config.held  # mathneuro is a part of wanda
    assert compared["jaccard"] > compared["chance_jaccard"]
    norms = json.loads(
        ok(run("mask", "compare", "math.safetensors", "capitals.safetensors", "-m", "demo", "--format", "json"))
    )
    assert norms["held"][0] == norms["held"][1]

    ok(run("mask", "combine", "b", "a", "--op", "difference", "-o", "d"))
    assert NeurosurgeryAdapter.from_pretrained("d").config.held == created["held"] - compared["shared"]

    ok(run("surgery", "bake", "-a", "a", "--scale", "0", "-o", "baked"))
    assert "pruned by Math Neurosurgery" in Path("baked/README.md").read_text()
    edited = json.loads(ok(run("eval", "-m", "baked", "-t", "demo_grammar", "--limit", "8", "--format", "json")))
    attached = json.loads(
        ok(
            run(
                "eval",
                "-m",
                "demo",
                "-a",
                "a",
                "--scale",
                "0",
                "-t",
                "demo_grammar",
                "--limit",
                "8",
                "-o",
                "r.json",
                "--format",
                "json",
            )
        )
    )
    scores = [side["tasks"]["demo_grammar"]["metrics"][0]["values"] for side in (edited["base"], attached["edited"])]
    assert scores[0] == scores[1]
    assert json.loads(Path("r.json").read_text())["reports"][0]["comparisons"] == attached["comparisons"]


def test_the_printed_command_makes_the_same_masks_again(run):
    ok(run(*CREATE, "-o", "a", "--keep-ratio", "0.1", "--contrast-keep-ratio", "0.02"))
    card = Path("a/README.md").read_text()
    command = next(line for line in card.splitlines() if line.startswith("mathneuro surgery create"))
    ok(run(*command.split()[1:-1], "again"))
    assert (
        Path("a/neurosurgery_masks.safetensors").read_bytes()
        == Path("again/neurosurgery_masks.safetensors").read_bytes()
    )


def test_a_card_s_example_runs_as_printed(run):
    ok(run(*CREATE, "-o", "math"))
    card = Path("math/README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    spoken: dict[str, object] = {}
    exec(code, spoken)
    assert type(spoken["model"]).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "-m", "demo", "-d", "nothing.csv", "-o", "n.safetensors"], "nothing.csv"),
        (["calibrate", "-m", "demo", "-d", "demo:maths", "-o", "n.safetensors"], "demo:math"),
        (["calibrate", "-m", "nowhere/at/all", "-d", "demo:math", "-o", "n.safetensors"], "does not exist"),
        (["calibrate", "-m", "demo", "-d", "empty.jsonl", "-o", "n.safetensors"], "empty"),
        (["calibrate", "-m", "demo", "-d", "latin.csv", "-o", "n.safetensors"], "UTF-8"),
        (["calibrate", "-m", "demo", "-d", "rows.csv", "--columns", "missing", "-o", "n.safetensors"], "'a', 'b'"),
        (["calibrate", "-m", "demo", "-d", "rows.csv", "-o", "n.safetensors"], "'a', 'b'"),
        (["calibrate", "-m", "demo", "-d", "demo:math", "--max-length", "0", "-o", "n.safetensors"], "at least 1"),
        (["calibrate", "-m", "demo", "-d", "demo:math", "-o", "rows.csv"], "--overwrite"),
        ([*CREATE, "--keep-ratio", "0", "-o", "a"], "keep ratio"),
        ([*CREATE, "--keep-ratio", "1.5", "-o", "a"], "keep ratio"),
        ([*CREATE, "--scale", "nan", "-o", "a"], "finite"),
        ([*CREATE[:-4], "-o", "a"], "needs a contrast"),
        (["surgery", "create", "-m", "demo", "-o", "a"], "--skill"),
        (
            [*CREATE[:4], "--skill", "gone.safetensors", "--contrast", "demo:math", "-o", "a"],
            "no norms file gone.safetensors",
        ),
        (["surgery", "bake", "-a", "nowhere", "-o", "baked"], "holds no adapter"),
        (["mask", "show", "nowhere"], "holds no adapter"),
        (["mask", "show", "rows.safetensors"], "no readable norms file"),
        (["eval", "-m", "demo", "-t", "demo_mth"], "demo_math"),
        (["eval", "-m", "demo", "-t", "demo_math", "--scale", "2"], "--adapter"),
        (["eval", "-m", "demo", "-t", "demo_math", "--limit", "0"], "limit"),
        (["eval", "-m", "demo", "-t", "demo_math", "--dtype", "float99"], "no dtype 'float99'"),
        (["eval", "-m", "demo", "-t", "demo_math", "--device", "gpu"], "no device 'gpu'"),
        (["eval", "-m", "demo", "-t", "demo_math", "--device", "cuda:77"], "cuda:77 is not there"),
        (["demo", "-o", "full"], "--overwrite"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing_behind(run, arguments, message):
    Path("empty.jsonl").write_text("")
    Path("latin.csv").write_bytes("a,b\ncafé,1\n".encode("latin-1"))
    Path("rows.csv").write_text("a,b\n1,2\n")
    Path("rows.safetensors").write_text("no tensors")
    Path("full").mkdir()
    Path("full/file").write_text("kept")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    error = refused(run(*arguments))
    assert error.startswith("Error: ")
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_wrong_usage_exits_with_2(run):
    assert "No such option" in refused(run("calibrate", "--nonsense"), 2)
    assert "Missing option" in refused(run("calibrate", "-m", "demo"), 2)
    assert "is not one of" in refused(run(*CREATE, "-o", "a", "--method", "guess"), 2)


def test_an_adapter_of_another_base_is_refused(run, tmp_path):
    models.save(tmp_path / "other", models.llama())
    ok(run(*CREATE, "-o", "a"))
    error = refused(run("surgery", "bake", "-a", "a", "-m", str(tmp_path / "other"), "-o", "baked"))
    assert "belongs to demo" in error
    assert not Path("baked").exists()
    error = refused(run("eval", "-m", str(tmp_path / "other"), "-a", "a", "-t", "demo_math"))
    assert "belongs to demo" in error


def test_a_model_without_any_weight_to_edit_is_refused(run, tmp_path):
    models.save(tmp_path / "t5", models.llama())
    config = json.loads((tmp_path / "t5/config.json").read_text())
    (tmp_path / "t5/config.json").write_text(json.dumps(config | {"model_type": "t5"}))
    error = refused(run(*CREATE[:2], "-m", str(tmp_path / "t5"), "--method", "magnitude", "-o", "a"))
    assert "No causal language model is known for model type 't5'" in error
