"""What the server refuses, as the clients tell it apart: by status and by ``X-Error-Code``."""

from __future__ import annotations


class HubError(Exception):
    """An answer with a status of 400 or more.

    Attributes:
        status: HTTP status.
        code: the ``X-Error-Code`` on which huggingface_hub chooses its exception; None where the Hub sends none.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


def repo_not_found(signed_in: bool) -> HubError:
    """A repo that is missing, or private and not for this caller: the Hub does not say which."""
    if signed_in:
        return HubError(404, "Repository not found", "RepoNotFound")
    return HubError(401, "Invalid username or password.", "RepoNotFound")


def revision_not_found(revision: str) -> HubError:
    return HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str, commit: str | None = None) -> HubError:
    headers = {} if commit is None else {"X-Repo-Commit": commit}
    return HubError(404, f"Entry not found: {path}", "EntryNotFound", headers)


def unauthenticated() -> HubError:
    return HubError(401, "Invalid username or password.")


def forbidden(what: str) -> HubError:
    return HubError(403, f"Forbidden: {what}")


def bad_request(why: str) -> HubError:
    return HubError(400, why)
