"""The Hub as a test holds it: start it, fill it, break it, look into it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from . import routes
from .faults import Action, Drop, Exchange, Failure, Faults
from .repo import Commit, File, Gate, Kind, Repo, changed
from .store import Role, Store, User
from .wire import Request, Response, Server

_CLIENT_SETTINGS = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_", "DATASETS_")


class Hub:
    """A Hugging Face Hub on two ports of 127.0.0.1, running while the context is open.

    >>> with Hub() as hub:
    ...     hub.add_user("ada", token="hf_ada", orgs={"team": "write"})
    ...     hub.add_repo("model", "team/base", {"config.json": b"{}"})
    ...     subprocess.run([...], env=hub.environment(token="hf_ada", home=tmp_path))
    ...     assert "config.json" in hub.files("team/base")

    Requests are answered one at a time. Where a test names requests it gives a method and a regular expression that is searched
    for in the path, as sent (``refs%2Fpr%2F1``) and without the query; a fault befalls the next ``times`` requests that
    match, after ``skip`` of them have passed.
    """

    def __init__(self, part_size: int = 5 * 1024**2) -> None:
        """``part_size``: LFS files above this many bytes are uploaded in parts of this size."""
        self._store = Store(part_size)
        self._faults = Faults()
        self._lock = threading.RLock()  # on what the store holds
        self._power = threading.Lock()  # a client may see the end of stop() before it is over
        self._servers: list[Server] = []
        self._crashes: list[Exception] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; and when an endpoint crashed, say so, for the clients only saw a 500."""
        self.stop()
        if self._crashes:
            raise ExceptionGroup("the test Hub crashed", self._crashes)

    @property
    def url(self) -> str:
        """The address, without a slash at the end; the same after a restart."""
        return self._store.url

    def start(self) -> None:
        """Listen, after :meth:`stop` on the same ports as before and with everything still there."""
        with self._power:
            ports = [urlsplit(url).port or 0 for url in (self._store.url, self._store.blob_url)]
            self._servers = [Server(port, self._faults, self._answer, self._crashes) for port in ports]
            self._store.url, self._store.blob_url = (
                f"http://127.0.0.1:{server.server_port}" for server in self._servers
            )

    def stop(self) -> None:
        """Go down at once: every connection is cut, also those kept alive, and no new one is taken."""
        with self._power:
            for server in self._servers:
                server.kill()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Environment variables for a subprocess whose Hub this is, with ``home`` for its caches."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLIENT_SETTINGS)}
        settings = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        return kept | settings | ({} if token is None else {"HF_TOKEN": token})

    # What is in it

    def add_user(
        self,
        name: str,
        token: str,
        orgs: Mapping[str, Role] | None = None,
        token_role: Literal["read", "write"] = "write",
    ) -> None:
        """An account with one token; ``orgs``: organization -> role."""
        self._store.users[token] = User(name, token, dict(orgs or {}), token_role)

    def add_repo(
        self, kind: Kind, repo_id: str, files: Mapping[str, bytes], private: bool = False, gated: Gate = False
    ) -> Repo:
        """A repo with the Hub's first commit and one with ``files``, LFS where its ``.gitattributes`` says so.

        Its ``downloads``, ``likes`` and ``readers`` (through the gate) can be set on the result.
        """
        with self._lock:
            repo = Repo(kind, repo_id, self._store.clock, private=private, gated=gated)
            self._store.repos[kind, repo_id] = repo
            self.commit(repo_id, files, kind=kind)
        return repo

    def repo(self, repo_id: str, kind: Kind = "model") -> Repo:
        """KeyError when there is none."""
        return self._store.repos[kind, repo_id]

    def files(self, repo_id: str, revision: str = "main", kind: Kind = "model") -> dict[str, bytes]:
        """Path -> bytes, LFS files with their content."""
        with self._lock:
            return {path: file.data for path, file in self.repo(repo_id, kind).commit_at(revision).files.items()}

    def commit(
        self,
        repo_id: str,
        files: Mapping[str, bytes],
        revision: str = "main",
        kind: Kind = "model",
        title: str = "Add files",
    ) -> Commit:
        """A commit by someone else: what makes a client's parent stale."""
        with self._lock:
            repo = self.repo(repo_id, kind)
            start = repo.commit_at(revision)
            added = {path: File(data, start.goes_to_lfs(path, len(data))) for path, data in files.items()}
            return repo.commit(revision, changed(start.files, added, ()), title, "", repo.namespace)

    def everything_written(self) -> bytes:
        """Every byte that clients have put into any repo: files of all commits, messages, names, uploads."""
        with self._lock:
            return b"\n".join(self._store.everything_written())

    # What was asked, and what goes wrong

    @property
    def requests(self) -> list[Exchange]:
        """Every request since the start, in the order of arrival, those of the storage included."""
        return list(self._faults.log)

    def fail_next(
        self,
        method: str,
        path_regex: str,
        status: int,
        times: int = 1,
        headers: Mapping[str, str] | None = None,
        skip: int = 0,
    ) -> None:
        """Answer with ``status`` and do nothing."""
        self._faults.plan(Failure(method, re.compile(path_regex), times, skip, status, dict(headers or {})))

    def drop_connection_on(
        self,
        method: str,
        path_regex: str,
        during: Literal["request", "response"] = "request",
        after_bytes: int = 0,
        times: int = 1,
        skip: int = 0,
    ) -> None:
        """Cut the connection after ``after_bytes`` of the request's body, which then does nothing, or of the answer's.

        With ``during="response"`` and 0 bytes the request is done and no answer comes.
        """
        self._faults.plan(Drop(method, re.compile(path_regex), times, skip, during, after_bytes))

    def run_on(self, method: str, path_regex: str, action: Callable[[], object], times: int = 1, skip: int = 0) -> None:
        """Call ``action`` when the request arrives, before it does anything.

        ``hub.run_on("PUT", "/uploads/", hub.stop, skip=1)`` goes down while the second file is sent.
        """
        self._faults.plan(Action(method, re.compile(path_regex), times, skip, action))

    def _answer(self, request: Request) -> Response:
        with self._lock:
            return routes.answer(self._store, request)
