"""Endpoints that write to a repo: what to upload how, commits, branches and tags."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from . import cards
from .call import Call
from .errors import HubError, bad_request, forbidden
from .repo import File, Repo, changed
from .wire import Response, reply


def preupload(call: Call) -> Response:
    """Says for each file how to send it, and what the repo holds under its name, so that the same is not sent again."""
    repo = _target(call)
    commit = repo.commit_at(call.revision)

    def plan(path: str, size: int) -> dict[str, Any]:
        mode = "lfs" if commit.goes_to_lfs(path, size) else "regular"
        there = {"oid": commit.files[path].etag} if path in commit.files else {}
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, **there}

    return reply({"files": [plan(file["path"], file["size"]) for file in call.json()["files"]]})


def commit(call: Call) -> Response:
    """All of a commit or nothing of it, to the branch or pull request of the address, or to a new pull request."""
    repo = _target(call)
    start = repo.commit_at(call.revision)
    wanted = _Wanted.parse(call.request.body, repo)
    if wanted.parent not in {None, start.id}:
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    files = changed(start.files, wanted.added, wanted.deleted)
    if "README.md" in wanted.added:
        found = cards.errors(wanted.added["README.md"].data.decode(errors="replace"))
        if found:
            raise bad_request("Invalid metadata in README.md.\n" + "\n".join(f"- {message}" for message in found))
    author, revision, pull_request = call.signed_in.name, call.revision, {}
    if call.request.wants("create_pr"):
        pull = repo.open_discussion(wanted.title, wanted.message, author, base=revision)
        revision = pull.ref
        pull_request = {"pullRequestUrl": f"{call.store.url}/{repo.path}/discussions/{pull.number}"}
    made = repo.commit(revision, files, wanted.title, wanted.message, author)
    address = f"{call.store.url}/{repo.path}/commit/{made.id}"
    return reply({"success": True, "commitOid": made.id, "commitUrl": address, **pull_request})


def create_branch(call: Call) -> Response:
    repo = call.writable()
    start = call.json().get("startingPoint") if call.request.body else None
    repo.create_ref(f"refs/heads/{call.args['name']}", start or "main")
    return reply({})


def delete_branch(call: Call) -> Response:
    call.writable().delete_ref(f"refs/heads/{call.args['name']}")
    return reply({})


def create_tag(call: Call) -> Response:
    repo, body = call.writable(), call.json()
    ref = f"refs/tags/{body['tag']}"
    repo.create_ref(ref, call.revision)
    repo.tag_messages[ref] = body.get("message") or ""
    return reply({})


def delete_tag(call: Call) -> Response:
    call.writable().delete_ref(f"refs/tags/{call.args['name']}")
    return reply({})


@dataclass
class _Wanted:
    """A commit as the client sends it: one JSON object a line, the header first."""

    title: str = ""
    message: str = ""
    parent: str | None = None
    added: dict[str, File] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, body: bytes, repo: Repo) -> _Wanted:
        wanted = cls()
        try:
            for line in body.splitlines():
                operation = json.loads(line)
                wanted._take(operation["key"], operation["value"], repo)
        except (KeyError, TypeError, ValueError) as error:
            raise bad_request(f"Not a commit: {error!r}") from error
        if not wanted.title:
            raise bad_request("A commit needs a summary")
        return wanted

    def _take(self, key: str, value: dict[str, Any], repo: Repo) -> None:
        if key == "header":
            self.title, self.message = value["summary"], value.get("description") or ""
            self.parent = value.get("parentCommit")
        elif key == "file":
            self.added[_checked(value["path"])] = File(base64.b64decode(value["content"], validate=True), lfs=False)
        elif key == "lfsFile":
            if value["oid"] not in repo.lfs_objects:
                raise bad_request(f"The LFS object {value['oid']} of {value['path']} was not uploaded")
            self.added[_checked(value["path"])] = File(repo.lfs_objects[value["oid"]], lfs=True)
        elif key in {"deletedFile", "deletedFolder"}:
            self.deleted.append(value["path"])
        else:
            raise bad_request(f"Unknown operation in a commit: {key}")


def _checked(path: str) -> str:
    if not path or any(part in {"", ".", "..", ".git"} for part in path.split("/")):
        raise bad_request(f"Invalid path in a commit: {path}")
    return path


def _target(call: Call) -> Repo:
    """The repo, if the caller may put a commit at the address: others may propose one, and continue their own."""
    if not call.request.wants("create_pr") and not _own_pull_request(call):
        return call.writable()
    if call.signed_in.token_role != "write":
        raise forbidden("you must use a write token to upload to a repository")
    return call.readable()


def _own_pull_request(call: Call) -> bool:
    pulls = call.readable().pulls.values()
    return any(pull.ref == call.revision and pull.author == call.signed_in.name for pull in pulls)
