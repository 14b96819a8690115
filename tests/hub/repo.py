"""One repository, as git keeps it: immutable commits, and names that point at them."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from .errors import HubError, bad_request, entry_not_found, revision_not_found

Kind = Literal["model", "dataset", "space"]
Gate = Literal["auto", "manual", False]

#: Larger files go to LFS whatever they are called (bytes).
LFS_ABOVE = 10 * 1000**2

GIT_ATTRIBUTES = b"".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n".encode()
    for pattern in (
        "*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz "
        "*.onnx *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar "
        "*.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*"
    ).split()
)


@dataclass(frozen=True)
class File:
    """A file of a commit; the bytes of an LFS file are kept, and its pointer is what git would hash."""

    data: bytes
    lfs: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @cached_property
    def blob_id(self) -> str:
        """Git's name for what git stores: the file, or its LFS pointer."""
        stored = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id


Tree = Mapping[str, File]


@dataclass(frozen=True)
class Commit:
    """One state of a repo, under the 40-digit id that its content and history give it."""

    parent: str | None
    files: Tree
    title: str
    message: str
    author: str
    date: datetime

    @cached_property
    def id(self) -> str:
        tree = sorted((path, file.blob_id) for path, file in self.files.items())
        text = json.dumps([self.parent, tree, self.title, self.message, self.author, self.date.isoformat()])
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def file(self, path: str) -> File:
        if path not in self.files:
            raise entry_not_found(path, self.id)
        return self.files[path]

    def folders(self) -> set[str]:
        """Every folder that holds a file, however deep."""
        return {
            "/".join(parts[:depth])
            for path in self.files
            for parts in [path.split("/")]
            for depth in range(1, len(parts))
        }

    def goes_to_lfs(self, path: str, size: int) -> bool:
        """Whether ``.gitattributes`` or the size sends a file to LFS; empty files never go."""
        attributes = self.files[".gitattributes"].data.decode() if ".gitattributes" in self.files else ""
        patterns = [line.split()[0] for line in attributes.splitlines() if "filter=lfs" in line.split()]
        name = path.rsplit("/", 1)[-1]
        named = any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)
        return size > 0 and (named or size > LFS_ABOVE)


@dataclass(frozen=True)
class Event:
    """Something that happened in a discussion: a comment, a change of status or of title."""

    kind: Literal["comment", "status-change", "title-change"]
    author: str
    date: datetime
    data: Mapping[str, Any]


@dataclass
class PullRequest:
    """A pull request, or a discussion where ``base`` is None."""

    number: int
    title: str
    author: str
    date: datetime
    base: str | None
    status: Literal["open", "closed", "merged"] = "open"
    merge_commit: str | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def ref(self) -> str:
        return f"refs/pr/{self.number}"


@dataclass
class Repo:
    """A repo with its settings, its refs and every commit ever made.

    Attributes:
        id: ``namespace/name``.
        clock: gives every write its own time.
        readers: users who were let through the gate.
        refs: full ref name (``refs/heads/main``, ``refs/tags/v1``, ``refs/pr/1``) -> commit id.
        lfs_objects: sha256 -> bytes of every finished upload, committed or not.
        lfs_parts: sha256 -> part number -> bytes of unfinished multipart uploads.
    """

    kind: Kind
    id: str
    clock: Callable[[], datetime]
    private: bool = False
    gated: Gate = False
    downloads: int = 0
    likes: int = 0
    readers: set[str] = field(default_factory=set)
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    tag_messages: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    lfs_objects: dict[str, bytes] = field(default_factory=dict)
    lfs_parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.created = self.clock()
        first = {".gitattributes": File(GIT_ATTRIBUTES, lfs=False)}
        self._advance("refs/heads/main", Commit(None, first, "initial commit", "", self.namespace, self.created))

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    @property
    def path(self) -> str:
        """Where its pages live under the Hub's address: models have no prefix."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"

    @property
    def head(self) -> Commit:
        """The last commit of ``main``."""
        return self.commits[self.refs["refs/heads/main"]]

    def names(self, prefix: str) -> dict[str, str]:
        """Short name -> commit id of the refs under ``prefix``, such as ``refs/heads/``."""
        return {ref.removeprefix(prefix): commit for ref, commit in self.refs.items() if ref.startswith(prefix)}

    def find_ref(self, revision: str) -> str | None:
        """The full name of a branch, a tag or a pull request; None for a commit id and for what is not there."""
        candidates = (f"refs/heads/{revision}", f"refs/tags/{revision}", revision)
        return next((ref for ref in candidates if ref in self.refs), None)

    def commit_at(self, revision: str) -> Commit:
        ref = self.find_ref(revision)
        commit = self.commits.get(revision if ref is None else self.refs[ref])
        if commit is None:
            raise revision_not_found(revision)
        return commit

    def history(self, revision: str) -> Iterator[Commit]:
        """Newest first."""
        commit: Commit | None = self.commit_at(revision)
        while commit is not None:
            yield commit
            commit = self.commits[commit.parent] if commit.parent else None

    def last_change(self, commit: Commit, path: str) -> Commit:
        """The commit that gave ``path`` the bytes it has in ``commit``."""
        latest = commit
        for earlier in itertools.islice(self.history(commit.id), 1, None):
            if path not in earlier.files or earlier.files[path].blob_id != commit.files[path].blob_id:
                break
            latest = earlier
        return latest

    def commit(self, revision: str, files: Tree, title: str, message: str, author: str) -> Commit:
        """Put a commit with exactly ``files`` on a branch or a pull request."""
        ref = self.find_ref(revision)
        if ref is None or ref.startswith("refs/tags/"):
            raise revision_not_found(revision)
        commit = Commit(self.refs[ref], dict(files), title, message, author, self.clock())
        self._advance(ref, commit)
        return commit

    def create_ref(self, ref: str, start: str) -> None:
        if ref in self.refs:
            raise HubError(409, f"Reference already exists: {ref}")
        self.refs[ref] = self.commit_at(start).id

    def delete_ref(self, ref: str) -> None:
        if ref == "refs/heads/main":
            raise HubError(403, "Cannot delete the main branch")
        if self.refs.pop(ref, None) is None:
            raise revision_not_found(ref)
        self.tag_messages.pop(ref, None)

    def open_discussion(self, title: str, description: str, author: str, base: str | None) -> PullRequest:
        """A pull request on ``base``, with a ref of its own; a plain discussion without ``base``."""
        pull = PullRequest(len(self.pulls) + 1, title, author, self.clock(), base)
        comment = {"edited": False, "hidden": False, "latest": {"raw": description}}
        pull.events.append(Event("comment", author, self.clock(), comment))
        if base is not None:
            self.create_ref(pull.ref, base)
        self.pulls[pull.number] = pull
        return pull

    def merge(self, pull: PullRequest, author: str) -> Commit:
        """Put the pull request's changes on top of its base, as one commit."""
        if pull.base is None or pull.status != "open":
            raise bad_request("This pull request cannot be merged")
        start = self._common_ancestor(pull).files
        proposed = self.commit_at(pull.ref).files
        files = {
            path: file
            for path, file in self.commit_at(pull.base).files.items()
            if path in proposed or path not in start
        }
        files |= {path: file for path, file in proposed.items() if start.get(path) != file}
        commit = self.commit(pull.base, files, f"{pull.title} (#{pull.number})", "", author)
        pull.status, pull.merge_commit = "merged", commit.id
        pull.events.append(Event("status-change", author, commit.date, {"status": "merged"}))
        return commit

    def everything_written(self) -> Iterator[bytes]:
        """Every byte a client has put here: files, names, messages, discussions, uploads finished or not."""
        texts: list[str] = [*self.refs, *self.tag_messages.values()]
        for commit in self.commits.values():
            texts += [commit.title, commit.message, *commit.files]
            yield from (file.data for file in commit.files.values())
        for pull in self.pulls.values():
            texts += [pull.title, *(json.dumps(dict(event.data)) for event in pull.events)]
        yield from (text.encode() for text in texts)
        yield from self.lfs_objects.values()
        yield from (part for parts in self.lfs_parts.values() for part in parts.values())

    def _advance(self, ref: str, commit: Commit) -> None:
        self.commits[commit.id] = commit
        self.refs[ref] = commit.id
        self.lfs_objects |= {file.sha256: file.data for file in commit.files.values() if file.lfs}

    def _common_ancestor(self, pull: PullRequest) -> Commit:
        assert pull.base is not None
        base = {commit.id for commit in self.history(pull.base)}
        return next(commit for commit in self.history(pull.ref) if commit.id in base)


def changed(files: Tree, added: Mapping[str, File], deleted: Iterable[str]) -> dict[str, File]:
    """``files`` without the ``deleted`` files and folders (ending in ``/``), and with the ``added`` ones."""
    kept = dict(files)
    for path in deleted:
        gone = [name for name in kept if name == path or (path.endswith("/") and name.startswith(path))]
        if not gone:
            raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        for name in gone:
            del kept[name]
    return {**kept, **added}
