"""What teams do with the Hub: publish, look, load, change, publish again. Commands run as processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub import Hub
from huggingface_hub import ModelCard
from scenario import BASE, Person, adapter_on, said_or_written, save, serve_base, serve_data

from mathneuro_hub.adapter import NeurosurgeryAdapter, NeurosurgeryModel
from mathneuro_hub.base_model import find_base

TOKEN = "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"
PUSH = ["surgery", "push", "--yes", "--format", "json"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        hub.add_user("ada", token=TOKEN, orgs={"team": "write"})
        hub.add_user("ben", token="hf_BenReads", orgs={"team": "read"})
        yield hub


@pytest.fixture
def ada(hub: Hub, tmp_path: Path) -> Person:
    return Person(hub, tmp_path / "ada", TOKEN)


@pytest.fixture
def ben(hub: Hub, tmp_path: Path) -> Person:
    return Person(hub, tmp_path / "ben", "hf_BenReads")


def titles(hub: Hub, repo_id: str, revision: str = "main") -> list[str]:
    return [commit.title for commit in hub.repo(repo_id).history(revision)]


def python_of(card: str) -> str:
    return card.split("```python\n")[1].split("```")[0]


def test_publish_and_use(hub: Hub, ada: Person, ben: Person, tmp_path: Path) -> None:
    commit = serve_base(hub)
    first, second = adapter_on(commit), adapter_on(commit, keep_ratio=0.02)
    folders = [save(first, tmp_path / "first"), save(second, tmp_path / "second")]
    with Path(folders[0], "README.md").open("a") as card_of_first:
        card_of_first.write("\nFound on a Friday.\n")
    dry, made = ada.batch(
        ["surgery", "push", "--adapter", folders[0], "--repo-id", "team/math", "--no-eval", "--dry-run"],
        [*PUSH, "--adapter", folders[0], "--repo-id", "team/math", "--no-eval", "--commit-message", "First"],
    )
    plan = made.json()
    files = hub.files("team/math")
    for path in ("neurosurgery_config.json", "neurosurgery_masks.safetensors"):
        assert files[path] == Path(folders[0], path).read_bytes()
    assert (plan["url"], plan["new"]) == (f"{hub.url}/team/math", True)
    assert {entry["path"]: entry["size"] for entry in plan["files"]} == {
        path: len(data) for path, data in files.items() if path != ".gitattributes"
    }
    assert titles(hub, "team/math") == ["First", "initial commit"]
    card = files["README.md"].decode()
    assert dry.ok().endswith(card + "\n")
    assert card.endswith("<!-- mathneuro:end -->\n\nFound on a Friday.\n")
    assert all(path in dry.out for path in files if path != ".gitattributes")

    # Someone else, without any login of theirs on the way to a public repo
    guest = Person(hub, tmp_path / "guest")
    shown, listed, pulled, compared, combined = guest.batch(
        ["surgery", "show", "team/math", "--format", "json"],
        ["surgery", "list", "--base-model", BASE, "--format", "json"],
        ["surgery", "pull", "team/math", "--format", "quiet"],
        ["mask", "compare", "team/math", folders[1], "--format", "json"],
        ["mask", "combine", folders[1], "team/math", "--op", "difference", "-o", "rest", "--format", "json"],
    )
    assert (shown.json()["held"], shown.json()["revision"]) == (first.config.held, commit)
    assert [(entry["repo_id"], entry["kind"]) for entry in listed.json()["published"]] == [("team/math", "adapter")]
    assert pulled.ok() == "math\n"
    assert compared.json()["shared"] == first.config.held
    assert combined.json()["held"] == second.config.held - first.config.held
    local = guest.home / "work/math"
    assert {path.name: path.read_bytes() for path in local.iterdir()} == {
        path: data for path, data in files.items() if path != ".gitattributes"
    }

    # The card's example as printed; then the same without a network, from a cache that has it
    expected = NeurosurgeryModel.from_pretrained(find_base("demo").load(), first, scale=0.5).merge_and_unload()
    torch.save(expected.state_dict(), tmp_path / "expected.pt")
    check = (
        "\nimport torch\n"
        f"expected = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())\n"
        "assert type(model).__name__ == 'LlamaForCausalLM'\n"
    )
    # In another folder: one of the repo's name beside it would win.
    (guest.home / "elsewhere").mkdir()
    at = f"import os; os.chdir({str(guest.home / 'elsewhere')!r})\n"
    guest.python(at + python_of(card) + check)
    count = len(hub.requests)
    guest.python(at + python_of(card) + check, HF_HUB_OFFLINE="1")
    cold = Person(hub, tmp_path / "cold", TOKEN).batch(
        ["surgery", "show", "team/math"],
        ["mask", "compare", "team/math", folders[0]],
        ["surgery", "bake", "-a", folders[0], "-o", "baked"],
        ["surgery", "list", "--base-model", BASE],
        [*PUSH, "--adapter", folders[0], "--repo-id", "team/math", "--no-eval"],
        HF_HUB_OFFLINE="1",
    )
    for result in cold:
        assert "HF_HUB_OFFLINE" in result.refused()
    assert len(hub.requests) == count

    # A person writes on the card; publishing again leaves it, and what is published once is not published twice
    written = card.replace("license: other", "license: other\nlanguage: no").replace(
        "<!-- mathneuro:begin -->", "Ask Ada before use.\n\n<!-- mathneuro:begin -->"
    )
    hub.commit("team/math", {"README.md": written.encode()}, title="Notes")
    again, once_more = ada.batch(
        [*PUSH, "--adapter", folders[1], "--repo-id", "team/math", "--no-eval", "--commit-message", "Second"],
        [*PUSH, "--adapter", folders[1], "--repo-id", "team/math", "--no-eval", "--commit-message", "Third"],
    )
    assert not again.json()["new"]
    assert once_more.json()["url"] == plan["url"]
    assert titles(hub, "team/math") == ["Second", "Notes", "First", "initial commit"]
    card = hub.files("team/math")["README.md"].decode()
    assert card.count("Ask Ada before use.") == card.count("<!-- mathneuro:begin -->") == 1
    assert card.count("Found on a Friday.") == 1
    assert f"{second.config.held:,} of its" in card
    assert f"{first.config.held:,} of its" not in card
    assert ModelCard(card).data.language == "no"

    # A proposal; the Hub takes large files only from those who may write, so that others cannot even propose
    (proposed,) = ada.batch([*PUSH, "--adapter", folders[0], "--repo-id", "team/math", "--no-eval", "--create-pr"])
    refused = ben.batch(
        [*PUSH, "--adapter", folders[0], "--repo-id", "team/math", "--no-eval"],
        [*PUSH, "--adapter", folders[0], "--repo-id", "team/math", "--no-eval", "--create-pr"],
    )
    assert proposed.json()["url"] == f"{hub.url}/team/math/discussions/1"
    assert "ben has no right to write to team" in refused[0].refused()
    assert "has no right to that in team/math" in refused[1].refused()
    assert hub.files("team/math")["README.md"].decode() == card
    old = Path(folders[0], "neurosurgery_config.json").read_bytes()
    assert hub.files("team/math", "refs/pr/1")["neurosurgery_config.json"] == old
    assert TOKEN.encode() not in said_or_written(hub, ada, ben, guest)


def test_publish_from_a_model(hub: Hub, ada: Person, tmp_path: Path) -> None:
    """Everything by default: calibration, masks, evaluation; killed on the way, and run again."""
    serve_base(hub)
    serve_data(hub)
    command = [*PUSH, "--model", BASE, "--scale", "1.1", "--limit", "4", "--control", "--with-norms", "--with-peft"]
    hub.fail_next("POST", "/commit/", 500)
    assert "run the same again" in ada.run(*command).refused()
    assert titles(hub, "ada/base-mathneuro") == ["initial commit"]
    sent = [exchange.path for exchange in hub.requests if exchange.method == "PUT"]
    assert len(sent) == 5  # masks, three norms, PEFT's weights
    plan = ada.run(*command).json()
    assert [exchange.path for exchange in hub.requests if exchange.method == "PUT"] == sent
    assert len(titles(hub, "ada/base-mathneuro")) == 2
    assert plan["repo_id"] == "ada/base-mathneuro"
    files = hub.files("ada/base-mathneuro")
    (kept,) = (ada.home / "mathneuro/evaluations").iterdir()
    assert kept.read_bytes() == files["eval_results.json"]  # the first run's, not measured again
    assert {"norms/gsm8k.safetensors", "peft/adapter_config.json", "eval_results.json", "edited_weights.png"} <= set(
        files
    )
    data = ModelCard(files["README.md"].decode()).data
    assert (data.base_model, data.license, data.license_name) == (BASE, "other", "base-licence")
    assert data.datasets == ["EleutherAI/race", "cais/mmlu", "openai/gsm8k"]
    assert {result.dataset_type for result in data.eval_results} == {"openai/gsm8k", "EleutherAI/race"}
    text = files["README.md"].decode()
    assert "Control, a random mask" in text
    assert "within noise" in text
    assert not any(path.startswith(".eval_results") for path in files)  # four questions are no test set
    assert TOKEN.encode() not in said_or_written(hub, ada)


def test_publish_the_edited_model(hub: Hub, ada: Person, tmp_path: Path) -> None:
    folder = save(adapter_on(serve_base(hub)), tmp_path / "adapter")
    push = [*PUSH, "--no-eval", "--adapter", folder, "--repo-id"]
    baked, branch, tagged, again, other, public = ada.batch(
        [*push, "team/edited", "--baked", "--private"],
        [*push, "team/math", "--revision", "half/scale"],
        [*push, "team/math", "--revision", "refs/tags/v1", "--scale", "0"],
        [*push, "team/math", "--revision", "refs/tags/v1"],
        [*push, "team/edited"],
        [*push, "team/math", "--private"],
    )
    assert baked.json()["url"] == f"{hub.url}/team/edited"
    assert hub.repo("team/edited").private
    assert branch.json()["url"] == f"{hub.url}/team/math/tree/half/scale"
    tagged.ok()
    scales = {
        revision: json.loads(hub.files("team/math", revision)["neurosurgery_config.json"])["scale"]
        for revision in ("half/scale", "v1", "main")
    }
    assert scales == {"half/scale": 0.5, "v1": 0, "main": 0}
    assert "has a tag 'v1' already" in again.refused()
    assert "holds a baked model" in other.refused()
    assert "is public already" in public.refused()
    files = hub.files("team/edited")
    assert ModelCard(files["README.md"].decode()).data.base_model_relation == "finetune"
    program = (
        python_of(files["README.md"].decode()) + "import torch\n"
        "from mathneuro_hub import NeurosurgeryAdapter, NeurosurgeryModel\n"
        "edited = NeurosurgeryModel.from_pretrained('team/math', revision='half/scale').merge_and_unload()\n"
        "for name, value in model.state_dict().items(): assert torch.equal(value, edited.state_dict()[name]), name\n"
        "print(NeurosurgeryAdapter.from_pretrained('team/edited').config.held)\n"
    )
    assert int(ada.python(program)) == NeurosurgeryAdapter.from_pretrained(folder).config.held
