"""Accounts, repositories, and who may do what with which."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from .errors import HubError, bad_request, forbidden, repo_not_found, unauthenticated
from .repo import Kind, Repo

Role = Literal["read", "write", "admin"]

_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9_.-]{0,94}(?<![.-])")
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class User:
    """A person with one token.

    Attributes:
        orgs: organization -> this person's role in it.
        token_role: what the token allows at most.
    """

    name: str
    token: str
    orgs: Mapping[str, Role] = field(default_factory=dict)
    token_role: Literal["read", "write"] = "write"

    def belongs_to(self, namespace: str) -> bool:
        return namespace == self.name or namespace in self.orgs

    def may_write(self, namespace: str) -> bool:
        role = "admin" if namespace == self.name else self.orgs.get(namespace, "read")
        return self.token_role == "write" and role != "read"


@dataclass
class Store:
    """Everything the Hub knows. Not locked: the server answers one request at a time.

    Attributes:
        url: the Hub's address, without a slash at the end.
        blob_url: where LFS content is sent to and fetched from; another origin, which never sees a token.
        part_size: LFS files above this many bytes are uploaded in parts of this size.
    """

    part_size: int
    url: str = ""
    blob_url: str = ""
    users: dict[str, User] = field(default_factory=dict)
    repos: dict[tuple[Kind, str], Repo] = field(default_factory=dict)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _writes: int = 0

    def clock(self) -> datetime:
        """A time that is counted, one second a write, so that commit ids repeat and no two writes tie."""
        self._writes += 1
        return _START + timedelta(seconds=self._writes)

    def sign_in(self, authorization: str | None) -> User | None:
        """The user of an ``Authorization`` header; None without one."""
        if authorization is None:
            return None
        user = self.users.get(authorization.removeprefix("Bearer "))
        if user is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        return user

    def create(self, kind: Kind, repo_id: str, user: User | None, private: bool) -> Repo:
        """A new repo for ``user``.

        Raises:
            HubError: 401 without user, 400 for a name the Hub refuses, 403 without the right, 409 when it exists.
        """
        if user is None:
            raise unauthenticated()
        namespace, _, name = repo_id.partition("/")
        if not _NAME.fullmatch(name) or name.endswith((".git", ".ipynb")):
            raise bad_request(f"Invalid repo name: {name}")
        if not user.may_write(namespace):
            raise forbidden(f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"')
        if (kind, repo_id) in self.repos:
            raise HubError(409, f"You already created this {kind} repo: {repo_id}")
        repo = Repo(kind, repo_id, self.clock, private=private)
        self.repos[kind, repo_id] = repo
        return repo

    def visible(self, repo: Repo, user: User | None) -> bool:
        return not repo.private or (user is not None and user.belongs_to(repo.namespace))

    def readable(self, kind: Kind, repo_id: str, user: User | None) -> Repo:
        """The repo, if it exists for ``user``; what a gate hides stays hidden (:meth:`check_gate`)."""
        repo = self.repos.get((kind, repo_id))
        if repo is None or not self.visible(repo, user):
            raise repo_not_found(signed_in=user is not None)
        return repo

    def writable(self, kind: Kind, repo_id: str, user: User | None) -> Repo:
        repo = self.readable(kind, repo_id, user)
        if user is None:
            raise unauthenticated()
        if not user.may_write(repo.namespace):
            raise forbidden(f"You don't have the rights to write to {repo_id}")
        return repo

    def check_gate(self, repo: Repo, user: User | None) -> None:
        """Refuse the content of a gated repo to who was not let in."""
        if not repo.gated:
            return
        if user is None:
            why = "You must have access to it and be authenticated to access it. Please log in."
            raise HubError(401, f"Access to {repo.kind} {repo.id} is restricted. {why}", "GatedRepo")
        if not user.belongs_to(repo.namespace) and user.name not in repo.readers:
            why = f"you are not in the authorized list. Visit {self.url}/{repo.path} to ask for access."
            raise HubError(403, f"Access to {repo.kind} {repo.id} is restricted and {why}", "GatedRepo")

    def signed(self, action: Literal["read", "write"], path: str) -> str:
        """An address on the blob origin that is its own permission, as the Hub's storage gives them out."""
        return f"{self.blob_url}{path}?signature={self._signature(action, path)}"

    def check_signature(self, action: Literal["read", "write"], path: str, signature: str) -> None:
        if not hmac.compare_digest(signature, self._signature(action, path)):
            raise HubError(403, "Access denied")

    def everything_written(self) -> Iterator[bytes]:
        for (_, repo_id), repo in self.repos.items():
            yield repo_id.encode()
            yield from repo.everything_written()

    def _signature(self, action: str, path: str) -> str:
        return hmac.new(self._secret, f"{action} {path}".encode(), hashlib.sha256).hexdigest()
