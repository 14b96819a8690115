"""Data sets of the Hub: the real clients against a small server of our own, online and then offline."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mathneuro_hub.calibration.presets import presets

COMMIT = "a1" * 20
TINY = "tiny-org/tiny"


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def card(files: dict[str, str]) -> str:
    """The front matter that tells `datasets` of the configs: ``config/split.jsonl``."""
    lines = ["---", "configs:"]
    for config in dict.fromkeys(path.split("/")[0] for path in files):
        lines += [f"- config_name: {config}", "  data_files:"]
        for path in files:
            if path.startswith(f"{config}/"):
                lines += [f"  - split: {Path(path).stem}", f"    path: {path}"]
    return "\n".join([*lines, "---", ""])


def numbered(kind: str, count: int) -> str:
    return jsonl([{"question": f"{kind} {i}?", "answer": str(i)} for i in range(count)])


RACE_PROBLEM = {"question": "Who?", "options": ["Ada", "Ben", "Cleo", "Dan"], "answer": "B"}
MATH_CONFIGS = presets()["math"].configs
REPOS = {
    TINY: {
        "one/train.jsonl": numbered("train", 5),
        "one/test.jsonl": numbered("test", 3),
        "two/validation.jsonl": numbered("validation", 4),
    },
    "tiny-org/gated": {"one/train.jsonl": numbered("train", 1)},
    "openai/gsm8k": {"main/train.jsonl": numbered("main", 2), "socratic/train.jsonl": numbered("socratic", 2)},
    "EleutherAI/hendrycks_math": {
        f"{config}/train.jsonl": jsonl([{"problem": f"{config}?", "level": "5", "solution": "x"}])
        for config in MATH_CONFIGS
    },
    "cais/mmlu": {
        "all/validation.jsonl": jsonl([{"question": "q", "subject": "s", "choices": ["a", "b"], "answer": 1}]),
        "all/test.jsonl": jsonl([{"question": "q", "subject": "s", "choices": ["a", "b"], "answer": -1}]),
    },
    "EleutherAI/race": {"high/test.jsonl": jsonl([{"article": "Long.", "problems": repr([RACE_PROBLEM])}])},
}
FILES = {repo: {"README.md": card(files), **files} for repo, files in REPOS.items()}


class Hub(BaseHTTPRequestHandler):
    """What `datasets` asks of the Hub to load a public data set of JSONL files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(urlsplit(self.path).path).removeprefix("/api").removeprefix("/datasets/")
        owner, name, kind, revision, file = (*path.split("/", 4), "", "", "")[:5]
        repo = f"{owner}/{name}"
        files = FILES.get(repo)
        if files is None:
            self.reply(404, X_Error_Code="RepoNotFound")
        elif name == "gated" and kind == "resolve":
            self.reply(403, X_Error_Code="GatedRepo")
        elif revision not in ("", "main", COMMIT):
            self.reply(404, X_Error_Code="RevisionNotFound")
        elif kind in ("", "revision"):
            self.reply(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": []}).encode())
        elif kind == "resolve" and file in files:
            content = files[file].encode()
            self.reply(200, content, ETag=hashlib.sha1(content).hexdigest(), X_Repo_Commit=COMMIT)
        elif kind == "tree" and any(entry.startswith(f"{file}/") for entry in files):
            self.reply(200, json.dumps([self.entry(repo, e) for e in files if e.startswith(f"{file}/")]).encode())
        elif kind == "paths-info":
            asked = parse_qs(sent).get("paths", [])
            self.reply(200, json.dumps([self.entry(repo, e) for e in asked if e in files]).encode())
        else:
            self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def entry(self, repo: str, path: str) -> dict[str, Any]:
        content = FILES[repo][path].encode()
        return {"type": "file", "path": path, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


LOAD_ALL = """
import json, sys
from mathneuro_hub.calibration.data import DataSpec, load_texts
from mathneuro_hub.errors import MathNeuroError
found = []
for spec in json.load(sys.stdin):
    try:
        drawn = load_texts(DataSpec(**spec))
        found.append({"texts": drawn.texts, **drawn.provenance.to_dict()})
    except MathNeuroError as error:
        found.append(f"{type(error).__name__}: {error}")
json.dump(found, sys.stdout)
"""


def load_in_new_process(home: Path, specs: list[dict[str, Any]], **environment: str) -> list[Any]:
    """The clients read their endpoint and their offline switch when they are imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    kept |= {"HF_HOME": str(home), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALL],
        input=json.dumps(specs),
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_hub_data_sets_load_and_fail_clearly_and_load_again_offline(tmp_path: Path, hub: str) -> None:
    one = {"source": f"{TINY}:one"}
    specs: list[dict[str, Any]] = [
        one,
        {**one, "split": "test", "revision": "main"},
        {"source": f"{TINY}:two"},
        {"source": "gsm8k"},
        {"source": "gsm8k:socratic"},
        {"source": "openai/gsm8k:main"},
        {"source": "math"},
        {"source": "mmlu"},
        {"source": "cais/mmlu"},
        {"source": "race"},
    ]
    bad = [
        ({"source": "tiny-org/none"}, "DataError: There is no data set tiny-org/none on the Hub"),
        ({"source": "tiny-org/gated"}, f"{hub}/datasets/tiny-org/gated"),
        ({"source": TINY}, "several configs; choose tiny-org/tiny:CONFIG with one of 'one', 'two'"),
        ({"source": f"{TINY}:three"}, "no config 'three'; choose tiny-org/tiny:CONFIG with one of 'one', 'two'"),
        ({**one, "split": "dev"}, "no split 'dev'; choose one with --split from train, test"),
        ({**one, "revision": "v9"}, "no revision 'v9'"),
        ({"source": "mmlu", "split": "test"}, "Row 0 of mmlu (counting from 0) is not shaped like the preset mmlu"),
    ]
    found = load_in_new_process(tmp_path, specs + [spec for spec, _ in bad], HF_ENDPOINT=hub)
    train, test, two, gsm8k, socratic, by_id, math, mmlu, mmlu_by_id, race = found[: len(specs)]
    assert sorted(train["texts"]) == [f"Question: train {i}?\n\nAnswer: {i}" for i in range(5)]
    assert (train["hub_id"], train["configs"], train["split"]) == (TINY, ["one"], "train")
    assert train["revision"] == test["revision"] == COMMIT
    assert (test["split"], test["rows"]) == ("test", 3)
    assert (two["split"], two["configs"]) == ("validation", ["two"])
    assert (gsm8k["name"], gsm8k["preset"], gsm8k["hub_id"]) == ("gsm8k", "gsm8k", "openai/gsm8k")
    assert gsm8k["texts"] == by_id["texts"] != socratic["texts"]
    assert {text.split("?")[0] for text in math["texts"]} == {f"Question: {config}" for config in MATH_CONFIGS}
    assert math["configs"] == list(MATH_CONFIGS)
    assert mmlu["texts"] == mmlu_by_id["texts"] == ["Question: q\n\nChoices: ['a', 'b']\n\nAnswer: b"]
    assert race["texts"][0].startswith("Article: Long.\n\nQuestion: Who?")
    for (spec, message), said in zip(bad, found[len(specs) :], strict=True):
        assert message in said, spec

    offline = load_in_new_process(
        tmp_path,
        [
            one,
            {**one, "revision": COMMIT},
            {**one, "revision": "main"},
            {"source": f"{TINY}:three"},
            {"source": "tiny-org/other"},
        ],
        HF_HUB_OFFLINE="1",
    )
    assert offline[0] == offline[1] == train
    assert f"cached copy of {TINY} is of commit {COMMIT}" in offline[2]
    assert "no config 'three'" in offline[3]
    assert "tiny-org/other is not in the local cache and the Hub cannot be reached" in offline[4]
