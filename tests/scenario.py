"""A team's machines and a Hub between them: commands run as processes of their own, over HTTP, with the real clients."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from hub import Hub

from mathneuro_hub.adapter import NeurosurgeryAdapter, create_adapter
from mathneuro_hub.base_model import find_base
from mathneuro_hub.demo import MODEL_FOLDER, SETS_FOLDER
from mathneuro_hub.publishing.card import save_adapter

COMMAND = [sys.executable, "-c", "from mathneuro_hub_cli.main import run; run()"]
BATCH = """
import contextlib, io, json, sys
from mathneuro_hub_cli.failures import guarded
from mathneuro_hub_cli.main import app
results = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = guarded(lambda: app(arguments))
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
BASE = "org/base"
BASE_CARD = b"---\nlicense: other\nlicense_name: base-licence\nlicense_link: LICENSE\n---\n# Base\n"


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    status: int
    out: str
    err: str

    def ok(self) -> str:
        assert self.status == 0, self.err
        return self.out

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ok())
        return found

    def refused(self) -> str:
        """The one sentence of an error, with nothing on stdout and nothing after it."""
        assert (self.status, self.out) == (1, ""), (self.status, self.out, self.err)
        assert self.err.count("Error: ") == 1, self.err
        last = self.err.splitlines()[-1]
        assert last.startswith("Error: "), self.err
        return last


@dataclass
class Person:
    """Someone at a machine of their own.

    Attributes:
        said: everything their commands printed.
    """

    hub: Hub
    home: Path
    token: str | None = None
    said: list[str] = field(default_factory=list)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return self._process([*COMMAND, *arguments], subprocess.DEVNULL, environment)

    def end(self, process: subprocess.Popen[str]) -> Result:
        out, err = process.communicate(timeout=300)
        self.said += [out, err]
        return Result(process.returncode, out, err)

    def run(self, *arguments: str, **environment: str) -> Result:
        return self.end(self.start(*arguments, **environment))

    def batch(self, *commands: list[str], **environment: str) -> list[Result]:
        """Command lines one after the other in one process, which has to import the libraries only once."""
        process = self._process([sys.executable, "-c", BATCH], subprocess.PIPE, environment)
        out, err = process.communicate(json.dumps(commands), timeout=300)
        assert process.returncode == 0, err
        self.said.append(err)
        results = [Result(*entry) for entry in json.loads(out)]
        self.said += [text for result in results for text in (result.out, result.err)]
        return results

    def python(self, program: str, **environment: str) -> str:
        """Run a program of their own, and give what it prints."""
        process = self._process([sys.executable, "-c", program], subprocess.DEVNULL, environment)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        self.said += [out, err]
        return out

    def _process(self, command: list[str], stdin: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        (self.home / "work").mkdir(parents=True, exist_ok=True)
        settings = {
            "MATHNEURO_CACHE": str(self.home / "mathneuro"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            command,
            env=self.hub.environment(home=self.home / "hf", token=self.token) | settings | environment,
            cwd=self.home / "work",
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def serve_base(hub: Hub) -> str:
    """The bundled model under an organization's name, with room for longer texts; gives the commit."""
    files = {path.name: path.read_bytes() for path in MODEL_FOLDER.iterdir()}
    config = json.loads(files["config.json"]) | {"max_position_embeddings": 4096}
    files |= {"config.json": json.dumps(config).encode(), "README.md": BASE_CARD, "LICENSE": b"Terms"}
    return hub.add_repo("model", BASE, files).head.id


def serve_data(hub: Hub) -> None:
    """A few rows under the ids, and in the shape, of what is calibrated and evaluated on by default."""
    texts = [json.loads(line)["text"] for line in (SETS_FOLDER / "math.jsonl").read_text("utf-8").splitlines()]
    asked = [re.fullmatch(r"(?s)(.*)(?:= |Answer: )(\d+)", text) for text in texts[:44]]
    sums = [{"question": found[1].strip(), "answer": f"So.\n#### {found[2]}"} for found in asked if found]
    other = [json.loads(line)["text"] for line in (SETS_FOLDER / "grammar.jsonl").read_text("utf-8").splitlines()]
    problem = {"question": "Who sings?", "options": ["The cat", "The dogs", "The kings", "The horse"], "answer": "B"}
    articles = [
        {"example_id": str(i), "article": text, "problems": repr([problem] * 2)} for i, text in enumerate(other[:30])
    ]
    choices = [{"question": text, "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 1} for text in other[:30]]
    _serve(hub, "openai/gsm8k", "main", {"train": sums[:40], "test": sums[40:]})
    _serve(hub, "EleutherAI/race", "high", {"test": articles})
    _serve(hub, "cais/mmlu", "all", {"validation": choices})


def _serve(hub: Hub, repo_id: str, config: str, splits: dict[str, list[dict[str, Any]]]) -> None:
    lines = [f"configs:\n- config_name: {config}\n  data_files:"]
    files = {}
    for split, rows in splits.items():
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
        files[f"{config}/{split}.parquet"] = buffer.getvalue()
        lines.append(f"  - split: {split}\n    path: {config}/{split}.parquet")
    card = "---\n" + "\n".join(lines) + "\n---\n"
    hub.add_repo("dataset", repo_id, {**files, "README.md": card.encode()})


def adapter_on(commit: str, keep_ratio: float = 0.01, scale: float = 0.5) -> NeurosurgeryAdapter:
    """An adapter as one made on :func:`serve_base`'s model would be."""
    made = create_adapter(find_base("demo"), method="magnitude", keep_ratio=keep_ratio, scale=scale)
    return replace(made, config=replace(made.config, base_model_name_or_path=BASE, revision=commit))


def save(adapter: NeurosurgeryAdapter, folder: Path) -> str:
    save_adapter(adapter, folder)
    return str(folder)


def said_or_written(hub: Hub, *people: Person) -> bytes:
    """Every byte that commands printed, that lies in anyone's folders, or that reached the Hub."""
    printed = "\n".join(text for person in people for text in person.said).encode()
    files = [path for person in people for path in person.home.rglob("*") if path.is_file()]
    return b"\n".join([printed, hub.everything_written(), *(path.read_bytes() for path in files)])
