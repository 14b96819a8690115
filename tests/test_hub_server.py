"""The test Hub, as the real clients see it: nothing of a client is replaced, only its settings are set."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pyarrow
import pyarrow.parquet
import pytest
from hub import Hub
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    HfFileSystem,
    constants,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mathneuro_hub.demo import MODEL_FOLDER

# huggingface_hub sends files in a way that httpx2 calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

PART = 1000
WEIGHTS = bytes(range(256)) * 2
LONG_WEIGHTS = WEIGHTS * 6
CARD = b"---\nlicense: mit\nbase_model: team/base\nbase_model_relation: adapter\ntags: [math]\n---\n# Adapter\n"


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that conftest.py made for everyone else, and LFS in place of Xet."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(part_size=PART) as hub:
        hub.add_user("ada", token="hf_ada", orgs={"team": "write"})
        hub.add_user("bob", token="hf_bob", orgs={"team": "read"})
        hub.add_user("eve", token="hf_eve")
        hub.add_user("ann", token="hf_ann_reads", orgs={"team": "admin"}, token_role="read")
        yield hub


@pytest.fixture
def ada(hub: Hub) -> HfApi:
    return client(hub, "hf_ada")


def client(hub: Hub, token: str | bool = False) -> HfApi:
    return HfApi(endpoint=hub.url, token=token)


def asked(hub: Hub, method: str, part: str) -> int:
    return sum(exchange.method == method and part in exchange.path for exchange in hub.requests)


# Accounts and repos


def test_who_am_i(hub: Hub, ada: HfApi) -> None:
    me = ada.whoami()
    assert (me["name"], me["orgs"][0]["name"], me["orgs"][0]["roleInOrg"]) == ("ada", "team", "write")
    assert client(hub, "hf_ann_reads").whoami()["auth"]["accessToken"]["role"] == "read"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        client(hub, "hf_nobody").whoami()


def test_repos_are_created_changed_and_deleted(hub: Hub, ada: HfApi) -> None:
    url = ada.create_repo("team/new", private=True)
    assert (str(url), url.repo_id, url.repo_type) == (f"{hub.url}/team/new", "team/new", "model")
    assert ada.create_repo("mine").repo_id == "ada/mine"
    assert ada.create_repo("team/new", exist_ok=True).repo_id == "team/new"
    with pytest.raises(HfHubHTTPError, match="409"):
        ada.create_repo("team/new")
    assert list(hub.files("team/new")) == [".gitattributes"]
    assert ada.repo_exists("team/new")
    assert not client(hub).repo_exists("team/new")
    ada.update_repo_settings("team/new", visibility="public", gated="manual")
    assert client(hub).model_info("team/new").gated == "manual"
    ada.create_repo("team/new", repo_type="dataset")
    ada.delete_repo("team/new")
    assert not ada.repo_exists("team/new")
    assert ada.repo_exists("team/new", repo_type="dataset")
    with pytest.raises(RepositoryNotFoundError):
        ada.delete_repo("team/new")
    ada.delete_repo("team/new", missing_ok=True)


@pytest.mark.parametrize(
    ("token", "repo_id", "status"),
    [
        (False, "team/x", 401),
        ("hf_nobody", "team/x", 401),
        ("hf_bob", "team/x", 403),
        ("hf_eve", "team/x", 403),
        ("hf_ann_reads", "team/x", 403),
        ("hf_ada", "nobody/x", 403),
        ("hf_ada", "team/x.git", 400),
    ],
)
def test_who_may_not_create(hub: Hub, token: str | bool, repo_id: str, status: int) -> None:
    body = {"organization": repo_id.split("/")[0], "name": repo_id.split("/")[1]}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    assert httpx2.post(f"{hub.url}/api/repos/create", json=body, headers=headers).status_code == status
    assert hub.everything_written() == b""


def test_who_may_read_and_write(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/open", {"a.txt": b"a"})
    hub.add_repo("model", "team/secret", {"a.txt": b"a"}, private=True)
    for token in (False, "hf_eve"):
        with pytest.raises(RepositoryNotFoundError):
            client(hub, token).model_info("team/secret")
    assert client(hub, "hf_bob").model_info("team/secret").private
    for token in ("hf_bob", "hf_eve", "hf_ann_reads"):
        with pytest.raises(HfHubHTTPError, match="403"):
            client(hub, token).upload_file(path_or_fileobj=b"b", path_in_repo="a.txt", repo_id="team/open")
    with pytest.raises(HfHubHTTPError, match="401"):
        client(hub).upload_file(path_or_fileobj=b"b", path_in_repo="a.txt", repo_id="team/open")
    ada.auth_check("team/secret", write=True)
    assert hub.files("team/open")["a.txt"] == b"a"


def test_a_gate_hides_files_but_not_their_names(hub: Hub, tmp_path: Path) -> None:
    repo = hub.add_repo("model", "team/gated", {"a.txt": b"a"}, gated="manual")
    for token in (False, "hf_eve"):
        api = client(hub, token)
        assert api.list_repo_files("team/gated") == [".gitattributes", "a.txt"]
        with pytest.raises(GatedRepoError, match="restricted") as refused:
            api.hf_hub_download("team/gated", "a.txt", cache_dir=tmp_path)
    assert f"Visit {hub.url}/team/gated to ask for access" in str(refused.value)
    repo.readers.add("eve")
    assert Path(client(hub, "hf_eve").hf_hub_download("team/gated", "a.txt", cache_dir=tmp_path)).read_bytes() == b"a"


# Commits and refs


def test_a_folder_is_one_commit_and_the_same_again_is_none(hub: Hub, ada: HfApi, tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    for name, data in {"README.md": CARD, "w.safetensors": WEIGHTS, "deep/er/long.bin": LONG_WEIGHTS}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "empty.bin").touch()
    ada.create_repo("team/x")
    made = ada.upload_folder(repo_id="team/x", folder_path=tmp_path, commit_message="All", commit_description="of it")
    assert made.oid == hub.repo("team/x").head.id
    files = {path: data for path, data in hub.files("team/x").items() if path != ".gitattributes"}
    assert files == {"README.md": CARD, "w.safetensors": WEIGHTS, "deep/er/long.bin": LONG_WEIGHTS, "empty.bin": b""}
    assert [commit.title for commit in ada.list_repo_commits("team/x")] == ["All", "initial commit"]
    parts = [exchange for exchange in hub.requests if exchange.method == "PUT"]
    assert len(parts) == 1 + -(-len(LONG_WEIGHTS) // PART)
    assert not any(exchange.has_auth for exchange in parts)
    again = ada.upload_folder(repo_id="team/x", folder_path=tmp_path)
    assert again.oid == made.oid
    ada.upload_file(path_or_fileobj=LONG_WEIGHTS, path_in_repo="copy.bin", repo_id="team/x")
    assert asked(hub, "PUT", "/uploads/") == len(parts)


def test_listing(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {"a/b/c.txt": b"c", "a/d.bin": WEIGHTS, "é #.txt": b"odd"})
    tree = {entry.path: entry for entry in ada.list_repo_tree("team/x", recursive=True, expand=True)}
    assert list(tree) == [".gitattributes", "a", "a/b", "a/b/c.txt", "a/d.bin", "é #.txt"]
    assert (tree["a/d.bin"].size, tree["a/d.bin"].lfs.size) == (len(WEIGHTS), len(WEIGHTS))
    assert tree[".gitattributes"].last_commit.title == "initial commit"
    assert [entry.path for entry in ada.list_repo_tree("team/x", "a")] == ["a/b", "a/d.bin"]
    with pytest.raises(EntryNotFoundError):
        list(ada.list_repo_tree("team/x", "b"))
    assert [entry.path for entry in ada.get_paths_info("team/x", ["a", "nothing", "é #.txt"])] == ["a", "é #.txt"]
    info = ada.model_info("team/x", files_metadata=True)
    assert {file.rfilename: file.size for file in info.siblings}["a/d.bin"] == len(WEIGHTS)


def test_long_listings_come_in_pages(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("dataset", "team/many", {f"{number:04}.txt": b"" for number in range(1500)})
    assert len(ada.list_repo_files("team/many", repo_type="dataset")) == 1501
    assert asked(hub, "GET", "/tree/main") == 2


def test_deleting_and_copying(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {"a/1.txt": b"1", "a/2.txt": b"2", "b.txt": b"b", "c.bin": WEIGHTS})
    operations = [CommitOperationDelete("a/"), CommitOperationDelete("b.txt"), CommitOperationCopy("c.bin", "d.bin")]
    ada.create_commit("team/x", [*operations, CommitOperationAdd("e.txt", b"e")], commit_message="Change")
    files = hub.files("team/x")
    assert sorted(files) == [".gitattributes", "c.bin", "d.bin", "e.txt"]
    assert files["d.bin"] == WEIGHTS
    before = hub.repo("team/x").head
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        ada.delete_file("nothing.txt", "team/x")
    assert hub.repo("team/x").head is before


def test_branches_and_tags(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {"a.txt": b"1"})
    ada.create_branch("team/x", branch="feat/y")
    ada.upload_file(path_or_fileobj=b"2", path_in_repo="a.txt", repo_id="team/x", revision="feat/y")
    ada.create_tag("team/x", tag="v1", revision="feat/y", tag_message="First")
    ada.create_tag("team/x", tag="v1", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="409"):
        ada.create_branch("team/x", branch="feat/y")
    refs = ada.list_repo_refs("team/x")
    assert {branch.name for branch in refs.branches} == {"main", "feat/y"}
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1", hub.repo("team/x").refs["refs/tags/v1"])]
    assert [hub.files("team/x", revision)["a.txt"] for revision in ("main", "feat/y", "v1")] == [b"1", b"2", b"2"]
    with pytest.raises(RevisionNotFoundError):
        ada.upload_file(path_or_fileobj=b"3", path_in_repo="a.txt", repo_id="team/x", revision="v1")
    ada.delete_branch("team/x", branch="feat/y")
    ada.delete_tag("team/x", tag="v1")
    assert not ada.revision_exists("team/x", "v1")
    with pytest.raises(RevisionNotFoundError):
        ada.model_info("team/x", revision="feat/y")


def test_pull_requests(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {"a.txt": b"1", "b.txt": b"1"})
    eve = client(hub, "hf_eve")
    made = eve.upload_file(
        path_or_fileobj=b"2", path_in_repo="a.txt", repo_id="team/x", create_pr=True, commit_message="Better"
    )
    assert (made.pr_num, made.pr_revision, made.pr_url) == (1, "refs/pr/1", f"{hub.url}/team/x/discussions/1")
    eve.upload_file(path_or_fileobj=b"3", path_in_repo="c.txt", repo_id="team/x", revision="refs/pr/1")
    ada.upload_file(path_or_fileobj=b"4", path_in_repo="b.txt", repo_id="team/x")
    assert [hub.files("team/x", name)["a.txt"] for name in ("main", "refs/pr/1")] == [b"1", b"2"]
    assert [ref.ref for ref in ada.list_repo_refs("team/x", include_pull_requests=True).pull_requests] == ["refs/pr/1"]
    with pytest.raises(HfHubHTTPError, match="403"):
        eve.merge_pull_request("team/x", 1)
    ada.comment_discussion("team/x", 1, "Thanks")
    ada.merge_pull_request("team/x", 1)
    details = ada.get_discussion_details("team/x", 1)
    assert (details.status, details.title, details.merge_commit_oid) == ("merged", "Better", hub.repo("team/x").head.id)
    files = hub.files("team/x")
    assert [files["a.txt"], files["b.txt"], files["c.txt"]] == [b"2", b"4", b"3"]
    opened = ada.create_pull_request("team/x", title="Another")
    ada.change_discussion_status("team/x", opened.num, "closed")
    assert [(pull.num, pull.status) for pull in ada.get_repo_discussions("team/x")] == [(2, "closed"), (1, "merged")]


def test_foreign_lfs_uploads_are_refused(hub: Hub) -> None:
    hub.add_repo("model", "team/x", {})
    with pytest.raises(HfHubHTTPError, match="403"):
        client(hub, "hf_eve").upload_file(
            path_or_fileobj=WEIGHTS, path_in_repo="a.bin", repo_id="team/x", create_pr=True
        )
    assert WEIGHTS not in hub.everything_written()


def test_a_stale_parent_is_refused(hub: Hub, ada: HfApi) -> None:
    parent = hub.add_repo("model", "team/x", {"a.txt": b"1"}).head.id
    hub.run_on("POST", "/commit/main", lambda: hub.commit("team/x", {"a.txt": b"theirs"}))
    with pytest.raises(HfHubHTTPError, match="412"):
        ada.upload_file(path_or_fileobj=b"2", path_in_repo="a.txt", repo_id="team/x", parent_commit=parent)
    assert hub.files("team/x")["a.txt"] == b"theirs"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("base_model: /home/me/base", "model id"),
        ("datasets: [gsm8k, ./local.jsonl]", r"datasets\[1\]"),
        ("license: my-own", "license"),
        ("base_model_relation: cousin", "base_model_relation"),
        ("language: English", "language"),
        ("model-index: [{results: []}]", "name"),
        ("model-index: [{name: x, results: [{dataset: {name: d, type: d}, metrics: []}]}]", "task"),
        ("a: [", "YAML"),
        ("- a", "mapping"),
    ],
)
def test_cards_are_checked_before_and_at_the_commit(hub: Hub, ada: HfApi, metadata: str, message: str) -> None:
    hub.add_repo("model", "team/x", {})
    card = f"---\n{metadata}\n---\n# X\n".encode()
    with pytest.raises(ValueError, match=message):
        ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="team/x")
    assert asked(hub, "POST", "/commit/") == asked(hub, "POST", "/preupload/") == 0
    content = {"path": "README.md", "content": base64.b64encode(card).decode(), "encoding": "base64"}
    assert "Invalid metadata" in refused_commit(hub, {"key": "file", "value": content})
    assert "README.md" not in hub.files("team/x")


def refused_commit(hub: Hub, operation: dict[str, object]) -> str:
    """The answer to a commit that huggingface_hub would not send."""
    answer = httpx2.post(
        f"{hub.url}/api/models/team/x/commit/main",
        content="\n".join(json.dumps(line) for line in ({"key": "header", "value": {"summary": "s"}}, operation)),
        headers={"Authorization": "Bearer hf_ada"},
    )
    assert answer.status_code == 400
    return str(answer.json()["error"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("file", {"path": "../a", "content": ""}, "Invalid path"),
        ("file", {"path": "a/.git/b", "content": ""}, "Invalid path"),
        ("file", {"path": "a", "content": "?"}, "Not a commit"),
        ("lfsFile", {"path": "a.bin", "oid": "0" * 64, "algo": "sha256", "size": 1}, "was not uploaded"),
        ("rename", {}, "Unknown operation"),
    ],
)
def test_bad_commits_change_nothing(hub: Hub, key: str, value: dict[str, str], message: str) -> None:
    before = hub.add_repo("model", "team/x", {}).head
    assert message in refused_commit(hub, {"key": key, "value": value})
    assert hub.repo("team/x").head is before


def test_search(hub: Hub, ada: HfApi) -> None:
    base, adapter = hub.add_repo("model", "team/base", {}), hub.add_repo("model", "ada/one", {"README.md": CARD})
    other = hub.add_repo("model", "eve/two", {"README.md": CARD})
    hub.add_repo("model", "team/secret", {"README.md": CARD}, private=True)
    base.downloads, adapter.downloads, other.downloads = 9, 1, 5
    public = client(hub)

    def ids(api: HfApi, **query: object) -> list[str]:
        return [model.id for model in api.list_models(**query)]  # type: ignore[arg-type]

    assert ids(public, filter="base_model:adapter:team/base", sort="downloads") == ["eve/two", "ada/one"]
    assert ids(public, filter=["base_model:team/base", "math", "license:mit"]) == ["eve/two", "ada/one"]
    assert ids(public, filter="base_model:finetune:team/base") == []
    assert ids(ada, filter="base_model:adapter:team/base", author="team") == ["team/secret"]
    assert ids(public, search="ONE") == ["ada/one"]
    assert ids(public, sort="downloads", limit=2) == ["team/base", "eve/two"]
    hub.commit("ada/one", {"a.txt": b"a"})
    assert ids(public, sort="last_modified") == ["ada/one", "eve/two", "team/base"]
    full = next(iter(public.list_models(search="two", full=True)))
    assert (full.author, full.card_data.license, full.sha) == ("eve", "mit", other.head.id)
    assert [dataset.id for dataset in public.list_datasets()] == []


# Downloads


def test_downloads_and_what_is_missing(hub: Hub, ada: HfApi, tmp_path: Path) -> None:
    repo = hub.add_repo("model", "team/x", {"a.txt": b"text", "w.bin": WEIGHTS}, private=True)
    for name, data in hub.files("team/x").items():
        assert Path(ada.hf_hub_download("team/x", name, cache_dir=tmp_path)).read_bytes() == data
    folder = Path(ada.snapshot_download("team/x", cache_dir=tmp_path))
    assert folder.name == repo.head.id
    assert (folder / "w.bin").read_bytes() == WEIGHTS
    storage = [exchange for exchange in hub.requests if "/blobs/" in exchange.path]
    assert storage
    assert not any(exchange.has_auth for exchange in storage)
    with pytest.raises(EntryNotFoundError):
        ada.hf_hub_download("team/x", "b.txt", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        ada.hf_hub_download("team/x", "a.txt", revision="v9", cache_dir=tmp_path)
    for repo_id in ("team/y", "gpt2"):
        with pytest.raises(RepositoryNotFoundError):
            ada.hf_hub_download(repo_id, "a.txt", cache_dir=tmp_path)
    with pytest.raises(RepositoryNotFoundError):
        client(hub).hf_hub_download("team/x", "a.txt", cache_dir=tmp_path / "another")


def test_storage_wants_its_signature_and_no_token(hub: Hub) -> None:
    hub.add_repo("model", "team/x", {"w.bin": WEIGHTS})
    location = httpx2.get(f"{hub.url}/team/x/resolve/main/w.bin").headers["Location"]
    assert httpx2.get(location).content == WEIGHTS
    assert httpx2.get(location, headers={"Authorization": "Bearer hf_ada"}).status_code == 400
    assert httpx2.get(location.split("?")[0]).status_code == 403
    assert httpx2.put(location, content=b"x").status_code == 501


def test_ranges(hub: Hub) -> None:
    hub.add_repo("model", "team/x", {"w.bin": WEIGHTS, "a.txt": b"0123456789"})

    def get(byte_range: str) -> tuple[int, bytes, str | None]:
        answer = httpx2.get(f"{hub.url}/team/x/resolve/main/a.txt", headers={"Range": byte_range})
        return answer.status_code, answer.content, answer.headers.get("Content-Range")

    assert get("bytes=2-4") == (206, b"234", "bytes 2-4/10")
    assert get("bytes=8-99") == (206, b"89", "bytes 8-9/10")
    assert get("bytes=-3") == (206, b"789", "bytes 7-9/10")
    assert get("bytes=10-") == (416, b"", "bytes */10")
    with HfFileSystem(endpoint=hub.url, token=False).open("team/x/w.bin", block_size=64) as file:
        file.seek(300)
        assert file.read(10) == WEIGHTS[300:310]


# Faults


def test_errors_that_pass_are_waited_out(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {})
    hub.fail_next("POST", "/preupload/", 500)
    hub.fail_next("PUT", "/uploads/", 429, headers={"Retry-After": "0"})
    ada.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="w.bin", repo_id="team/x")
    assert hub.files("team/x")["w.bin"] == WEIGHTS
    assert [exchange.status for exchange in hub.requests if exchange.method == "PUT"] == [429, 200]


def test_errors_that_stay(hub: Hub, ada: HfApi) -> None:
    before = hub.add_repo("model", "team/x", {}).head
    hub.fail_next("POST", "/commit/", 500, skip=1)
    ada.upload_file(path_or_fileobj=b"a", path_in_repo="a.txt", repo_id="team/x")
    with pytest.raises(HfHubHTTPError, match="500"):
        ada.upload_file(path_or_fileobj=b"b", path_in_repo="b.txt", repo_id="team/x")
    assert hub.repo("team/x").head.parent == before.id


def test_a_cut_download_goes_on_where_it_stopped(
    hub: Hub, ada: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    hub.add_repo("model", "team/x", {"w.bin": LONG_WEIGHTS})
    hub.drop_connection_on("GET", "/blobs/", during="response", after_bytes=700)
    assert Path(ada.hf_hub_download("team/x", "w.bin", cache_dir=tmp_path)).read_bytes() == LONG_WEIGHTS
    assert [exchange.status for exchange in hub.requests if "/blobs/" in exchange.path] == [None, 206]


def test_a_lost_answer_leaves_the_commit(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {})
    hub.drop_connection_on("POST", "/commit/", during="response")
    with pytest.raises(httpx2.RemoteProtocolError):
        ada.upload_file(path_or_fileobj=b"a", path_in_repo="a.txt", repo_id="team/x")
    assert hub.files("team/x")["a.txt"] == b"a"


def test_a_push_that_dies_goes_on_after_the_restart(hub: Hub, ada: HfApi) -> None:
    before = hub.add_repo("model", "team/x", {}).head
    files = {f"{number}.bin": WEIGHTS + bytes([number]) for number in range(3)}
    url, operations = hub.url, [CommitOperationAdd(path, data) for path, data in files.items()]
    hub.run_on("POST", "/commit/", hub.stop)
    with pytest.raises(httpx2.TransportError):
        ada.create_commit("team/x", operations, commit_message="All")
    with pytest.raises(httpx2.ConnectError):  # nor is a connection that was kept alive still served
        ada.model_info("team/x")
    hub.start()
    assert (hub.url, hub.repo("team/x").head) == (url, before)
    again = [CommitOperationAdd(path, data) for path, data in files.items()]
    ada.create_commit("team/x", again, commit_message="All")
    assert asked(hub, "PUT", "/uploads/") == len(files)
    assert files.items() <= hub.files("team/x").items()


def test_an_upload_cut_in_the_middle_is_sent_again(hub: Hub, ada: HfApi) -> None:
    hub.add_repo("model", "team/x", {})
    hub.drop_connection_on("PUT", "/uploads/", after_bytes=100, skip=1)
    ada.upload_file(path_or_fileobj=LONG_WEIGHTS, path_in_repo="w.bin", repo_id="team/x")
    assert [exchange.status for exchange in hub.requests if exchange.method == "PUT"] == [200, None, 200, 200, 200]
    assert hub.files("team/x")["w.bin"] == LONG_WEIGHTS


def test_everything_written_holds_no_token(hub: Hub, ada: HfApi) -> None:
    ada.create_repo("team/x")
    ada.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="w.bin", repo_id="team/x", commit_description="Why")
    ada.create_tag("team/x", tag="v1", tag_message="Because")
    ada.create_discussion("team/x", title="How", description="So")
    written = hub.everything_written()
    assert all(text in written for text in (b"team/x", WEIGHTS, b"w.bin", b"Why", b"v1", b"Because", b"How", b"So"))
    assert b"hf_ada" not in written


def test_what_is_not_served_is_said() -> None:
    with Hub() as hub:
        answer = httpx2.get(f"{hub.url}/api/models/team/x/xet-write-token/main")
        assert (answer.status_code, answer.headers.get("X-Error-Code")) == (501, None)
        assert "no route" in answer.json()["error"]


def test_a_crash_of_the_hub_fails_the_test() -> None:
    hub = Hub()
    with pytest.raises(ExceptionGroup, match="crashed") as crashed, hub:
        httpx2.post(f"{hub.url}/api/validate-yaml", json={})
    assert isinstance(crashed.value.exceptions[0], KeyError)


def test_offline_makes_no_request(hub: Hub, ada: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add_repo("model", "team/x", {"a.txt": b"a"})
    ada.hf_hub_download("team/x", "a.txt", cache_dir=tmp_path / "warm")
    count = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Path(ada.hf_hub_download("team/x", "a.txt", cache_dir=tmp_path / "warm")).read_bytes() == b"a"
    with pytest.raises(LocalEntryNotFoundError):
        ada.hf_hub_download("team/x", "a.txt", cache_dir=tmp_path / "cold")
    with pytest.raises(OfflineModeIsEnabled):
        ada.model_info("team/x")
    assert len(hub.requests) == count


def test_the_environment_is_only_this_hubs(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_real")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    settings = hub.environment(home=tmp_path)
    assert (settings["HF_ENDPOINT"], settings["HF_HOME"]) == (hub.url, str(tmp_path))
    assert not settings.keys() & {"HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    assert hub.environment(home=tmp_path, token="hf_ada")["HF_TOKEN"] == "hf_ada"


# The libraries above huggingface_hub, in processes of their own: they read the address when they are imported

PUSH_AND_LOAD = """
import torch
from datasets import load_dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=200)
model = LlamaForCausalLM(LlamaConfig(**sizes))
model.push_to_hub("team/pico", private=True)
AutoTokenizer.from_pretrained("org/base").push_to_hub("team/pico")
loaded = AutoModelForCausalLM.from_pretrained("team/pico")
tokens = AutoTokenizer.from_pretrained("team/pico")("12 + 34 = 46", return_tensors="pt")["input_ids"]
assert torch.equal(model(tokens).logits, loaded(tokens).logits)

lora = get_peft_model(loaded, LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
expected = lora(tokens).logits
lora.push_to_hub("team/lora")
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("team/pico"), "team/lora")
assert torch.equal(again(tokens).logits, expected)

rows = load_dataset("openai/gsm8k", "main", split="train")
assert rows[1]["answer"] == "#### 2", rows[1]
assert [row["question"] for row in load_dataset("openai/gsm8k", "main", split="test", streaming=True)] == ["Is it 3?"]
try:
    AutoModelForCausalLM.from_pretrained("team/nothing")
except OSError as error:
    assert "is not a local folder and is not a valid model identifier" in str(error), error
else:
    raise AssertionError("a missing repo was loaded")
"""

LOAD_OFFLINE = """
import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM

AutoModelForCausalLM.from_pretrained("team/pico")
assert len(load_dataset("openai/gsm8k", "main", split="train")) == 2
try:
    AutoModelForCausalLM.from_pretrained("team/pico", cache_dir=sys.argv[1])
except OSError:
    pass
else:
    raise AssertionError("a cold cache gave a model")
"""


def run(program: str, environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def parquet(rows: list[dict[str, str]]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def test_transformers_peft_and_datasets(hub: Hub, tmp_path: Path) -> None:
    train = [{"question": f"Is it {number}?", "answer": f"#### {number}"} for number in (1, 2)]
    test = [{"question": "Is it 3?", "answer": "#### 3"}]
    files = [("train", "main/train-00000-of-00001.parquet"), ("test", "main/test-00000-of-00001.parquet")]
    splits = "".join(f"  - split: {split}\n    path: {path}\n" for split, path in files)
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}---\n".encode()
    content = {"README.md": card, files[0][1]: parquet(train), files[1][1]: parquet(test)}
    hub.add_repo("dataset", "openai/gsm8k", content)
    hub.add_repo("model", "org/base", {path.name: path.read_bytes() for path in MODEL_FOLDER.iterdir()})

    online = hub.environment(home=tmp_path / "home", token="hf_ada")
    run(PUSH_AND_LOAD, online)
    assert hub.repo("team/pico").private
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.files("team/pico").keys()
    assert {"adapter_config.json", "adapter_model.safetensors"} <= hub.files("team/lora").keys()

    count = len(hub.requests)
    run(LOAD_OFFLINE, online | {"HF_HUB_OFFLINE": "1"}, str(tmp_path / "cold"))
    assert len(hub.requests) == count
