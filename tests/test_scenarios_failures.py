"""What goes wrong between a command and the Hub: one sentence with the remedy, and nothing half-done."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hub import Hub
from scenario import BASE, Person, adapter_on, said_or_written, save, serve_base

from mathneuro_hub.adapter import create_adapter
from mathneuro_hub.base_model import find_base

TOKEN = "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"
PUSH = ["surgery", "push", "--yes", "--no-eval", "--format", "json"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        hub.add_user("ada", token=TOKEN, orgs={"team": "write"})
        hub.add_user("eve", token="hf_EveOutside")
        yield hub


@pytest.fixture
def ada(hub: Hub, tmp_path: Path) -> Person:
    return Person(hub, tmp_path / "ada", TOKEN)


@pytest.fixture
def eve(hub: Hub, tmp_path: Path) -> Person:
    return Person(hub, tmp_path / "eve", "hf_EveOutside")


@pytest.fixture
def commit(hub: Hub) -> str:
    return serve_base(hub)


@pytest.fixture
def folder(commit: str, tmp_path: Path) -> str:
    return save(adapter_on(commit), tmp_path / "adapter")


@dataclass(frozen=True)
class Doomed:
    """A push to a Hub that goes down on the way."""

    hub: Hub
    person: Person
    command: list[str]
    process: subprocess.Popen[str]


@pytest.fixture(scope="module", autouse=True)
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doomed]:
    """Started before all tests and looked at by the last: the client waits 23 seconds before it gives up."""
    with Hub() as hub:
        hub.add_user("ada", token=TOKEN, orgs={"team": "write"})
        folder = save(adapter_on(serve_base(hub)), tmp_path_factory.mktemp("doomed") / "adapter")
        person = Person(hub, tmp_path_factory.mktemp("ada"), TOKEN)
        command = [*PUSH, "--adapter", folder, "--repo-id", "team/math"]
        hub.run_on("PUT", "/uploads/", hub.stop)
        yield Doomed(hub, person, command, person.start(*command))


def test_pushes_that_are_refused(hub: Hub, ada: Person, folder: str, tmp_path: Path) -> None:
    hub.add_user("ann", token="hf_AnnReads", token_role="read")
    hub.add_repo("model", "team/other", {"model.safetensors": b"weights"})
    hub.add_repo("model", "team/card", {"README.md": b"---\nlicense: [\n---\n"})
    before = hub.everything_written()
    local = save(create_adapter(find_base("demo"), method="magnitude"), tmp_path / "local")
    push = [*PUSH, "--adapter", folder, "--repo-id"]
    cases = {
        "There is nothing to publish": [*PUSH, "--repo-id", "team/x"],
        "ada has no right to write to stranger; push to one of team, ada": [*push, "stranger/x"],
        "takes no repo named 'team/-x.git'": [*push, "team/-x.git"],
        "takes no repo named 'team/a/b'": [*push, "team/a/b"],
        "team/other holds something else (model.safetensors)": [*push, "team/other"],
        "has metadata that is no valid YAML": [*push, "team/card"],
        "no repo 'team/x' to open a pull request in": [*push, "team/x", "--create-pr"],
        "no branch 'v9' to propose a change to": [*push, "team/card", "--create-pr", "--revision", "v9"],
        "The base 'demo' is not on the Hub": [*PUSH, "--adapter", local, "--repo-id", "team/x"],
        "demo is a folder here, not a model on the Hub": [*PUSH, "--adapter", local, "--base-id", "demo"],
        "holds no activation norms": [*push, "team/x", "--with-norms"],
        "holds no adapter": [*PUSH, "--adapter", "nowhere", "--repo-id", "team/x"],
        "finite": [*push, "team/x", "--scale", "nan"],
        "holds characters that no token has": [*push, "team/x", "--token", f"{TOKEN}\n"],
        "does not take the token": [*push, "team/x", "--token", "hf_Wrong"],
        "The token of ann may only read": [*push, "x", "--token", "hf_AnnReads"],
        "add --yes": ["surgery", "push", "--no-eval", "--adapter", folder, "--repo-id", "team/x"],
    }
    for message, result in zip(cases, ada.batch(*cases.values()), strict=True):
        assert message in result.refused()
    (nobody,) = Person(hub, tmp_path / "nobody").batch([*push, "team/x"])
    assert "hf auth login" in nobody.refused()
    assert hub.everything_written() == before
    assert TOKEN.encode() not in said_or_written(hub, ada)


def test_a_base_given_by_its_id(hub: Hub, ada: Person, commit: str, tmp_path: Path) -> None:
    hub.add_repo("model", "org/gpt", {"config.json": b"{}", "model.safetensors": b"x"})
    local = save(create_adapter(find_base("demo"), method="magnitude"), tmp_path / "local")
    good, wrong = ada.batch(
        [*PUSH, "--adapter", local, "--base-id", BASE, "--repo-id", "team/x"],
        [*PUSH, "--adapter", local, "--base-id", "org/gpt", "--repo-id", "team/y"],
    )
    good.ok()
    assert wrong.status == 1
    config = hub.files("team/x")["neurosurgery_config.json"].decode()
    assert f'"base_model_name_or_path": "{BASE}"' in config
    assert f'"revision": "{commit}"' in config


def test_a_card_that_the_hub_refuses(hub: Hub, ada: Person, tmp_path: Path) -> None:
    serve_base(hub)
    commit = hub.commit(BASE, {"README.md": b"---\nlicense: my own\n---\n"}).id
    folder = save(adapter_on(commit), tmp_path / "adapter")
    before = hub.everything_written()
    dry, real = ada.batch(
        [*PUSH, "--adapter", folder, "--repo-id", "team/x", "--dry-run"],
        [*PUSH, "--adapter", folder, "--repo-id", "team/x"],
    )
    for result in (dry, real):
        assert "refuses the card's metadata, and nothing was uploaded" in result.refused()
        assert "license" in result.err
    assert hub.everything_written() == before


def test_what_cannot_be_read(hub: Hub, eve: Person, folder: str) -> None:
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    hub.add_repo("model", "team/private", files, private=True)
    hub.add_repo("model", "team/gated", files, gated="manual")
    hub.add_repo("model", "team/open", files)
    hub.add_repo("model", "team/empty", {})
    cases = {
        f"team/gated is gated; ask for access at {hub.url}/team/gated": ["surgery", "show", "team/gated"],
        "'team/private' at": ["surgery", "pull", "team/private"],
        "this login may not see it": ["mask", "compare", "team/private", folder],
        "'team/nothing' at": ["surgery", "bake", "-a", "team/nothing", "-o", "baked"],
        "There is no model 'org/nothing' at": ["eval", "-m", "org/nothing", "-t", "demo_math"],
        "team/open has no revision 'v9'": ["surgery", "show", "team/open", "--revision", "v9"],
        "has no revision 'v8'": ["surgery", "pull", "team/open", "--revision", "v8"],
        "team/empty holds no adapter": ["surgery", "show", "team/empty"],
    }
    for message, result in zip(cases, eve.batch(*cases.values()), strict=True):
        assert message in result.refused()
        assert "huggingface.co" not in result.err
    (alone,) = Person(hub, eve.home / "guest").batch(["surgery", "show", "team/private"])
    assert "there is no login" in alone.refused()
    assert list((eve.home / "work").iterdir()) == []


def test_errors_that_pass_and_a_repo_that_changes(hub: Hub, ada: Person, folder: str) -> None:
    hub.fail_next("POST", "/preupload/", 500)
    hub.fail_next("PUT", "/uploads/", 429, headers={"Retry-After": "0"})
    push = [*PUSH, "--adapter", folder, "--repo-id"]
    (passed,) = ada.batch([*push, "team/math"])
    passed.ok()
    hub.run_on("POST", "/preupload/", lambda: hub.commit("team/math", {"NOTICE": b"Mine"}, title="Meanwhile"))
    hub.fail_next("GET", "/api/models/team/math$", 429, skip=1)
    stale, busy, again = ada.batch(
        [*push, "team/math", "--scale", "0"], [*push, "team/math"], [*push, "team/math", "--scale", "0"]
    )
    assert "was changed by someone else meanwhile, and nothing was published" in stale.refused()
    assert "asks for fewer requests" in busy.refused()
    again.ok()
    titles = [made.title for made in hub.repo("team/math").history("main")]
    assert titles == [titles[0], "Meanwhile", titles[0], "initial commit"]
    assert hub.files("team/math")["NOTICE"] == b"Mine"


def test_a_hub_that_goes_down(doomed: Doomed, tmp_path: Path) -> None:
    """While files are sent: the repo stays as it was, and the same command completes it."""
    hub, ada = doomed.hub, doomed.person
    assert "cannot be reached" in ada.end(doomed.process).refused()
    (gone,) = Person(hub, tmp_path / "eve").batch(["surgery", "show", "team/math"])
    assert "cannot be reached" in gone.refused()
    hub.start()
    assert list(hub.files("team/math")) == [".gitattributes"]
    hub.drop_connection_on("POST", "/commit/", during="response")
    lost, again = ada.batch(doomed.command, doomed.command)
    assert "cannot be reached" in lost.refused()
    again.ok()
    assert len(list(hub.repo("team/math").history("main"))) == 2
    assert TOKEN.encode() not in said_or_written(hub, ada)
