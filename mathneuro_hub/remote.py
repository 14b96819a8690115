"""The one door to the Hub: what is fetched through it, and its refusals as one sentence each.

The clients' own settings hold: ``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``, with which no request is
made at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is httpx's or httpx2's
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mathneuro_hub._version import __version__
from mathneuro_hub.errors import HubError, ModelError, SettingError

LOGIN = "log in with `hf auth login`"


def endpoint() -> str:
    """The Hub's address, without a slash at the end."""
    return constants.ENDPOINT


def client(token: str | None = None) -> HfApi:
    """A client of the Hub; with the stored login unless there is a ``token``.

    Raises:
        SettingError: the token is none; its text is not repeated.
    """
    # httpx repeats a header that it cannot send in its message, and the token with it.
    if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
        raise SettingError("The token is empty or holds characters that no token has; copy it again from the Hub.")
    return HfApi(token=token, library_name="mathneuro-hub", library_version=__version__)


def fetch(
    repo_id: str,
    what: str,
    *,
    revision: str | None = None,
    patterns: Sequence[str] | None = None,
    token: str | None = None,
    cache_dir: Path | str | None = None,
    local_files_only: bool = False,
    raises: type[ModelError | HubError] = HubError,
) -> Path:
    """Files of a model repo in the usual cache; the folder's name is the commit.

    Args:
        repo_id: ``owner/name``.
        what: what it is to the user, for messages: ``model`` or ``adapter``.
        revision: branch, tag or commit; default ``main``.
        patterns: only files that match one of these.
        token: instead of the stored login.
        cache_dir: instead of the usual cache.
        local_files_only: make no request.
        raises: the class of the error.

    Raises:
        HubError, ModelError: it is missing, private, gated or not cached, or the Hub cannot be reached.
    """
    with clear_errors(repo_id, what, revision=revision, local_files_only=local_files_only, raises=raises):
        return Path(
            client(token).snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=list(patterns) if patterns is not None else None,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
            )
        )


@contextmanager
def clear_errors(
    repo_id: str,
    what: str = "repo",
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    raises: type[ModelError | HubError] = HubError,
) -> Iterator[None]:
    """Turn what the client libraries raise about ``repo_id`` into one sentence of ``raises``."""
    try:
        yield
    except (HTTPError, HFValidationError, LocalEntryNotFoundError, ConnectionError, RuntimeError) as error:
        # An upload's failure arrives wrapped in a RuntimeError that says nothing.
        cause = error.__cause__ if type(error) is RuntimeError else error
        if not isinstance(cause, (HTTPError, HFValidationError, LocalEntryNotFoundError, ConnectionError)):
            raise
        raise raises(_sentence(cause, repo_id, what, revision, local_files_only)) from error


def _sentence(error: BaseException, repo_id: str, what: str, revision: str | None, local_files_only: bool) -> str:
    if isinstance(error, GatedRepoError):
        return f"{repo_id} is gated; ask for access at {endpoint()}/{repo_id}, and {LOGIN}."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"There is no {what} {repo_id!r} at {endpoint()}, or it is private and "
            f"{'this login may not see it' if _signed_in(error) else 'there is no login'}, and no folder of that name is "
            f"here; check the spelling, or {LOGIN}."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo_id} has no revision {revision!r}; give a branch, tag or commit that exists."
    if isinstance(error, HFValidationError):
        return f"{repo_id!r} is neither a folder nor an id that the Hub takes; give one as TEAM/NAME."
    if isinstance(error, OfflineModeIsEnabled):
        return f"{repo_id} was not asked for, since HF_HUB_OFFLINE is set; unset it, or use a local folder."
    if isinstance(error, LocalEntryNotFoundError):
        missing = f"{repo_id}{f' at revision {revision}' if revision else ''} is not in the local cache, or not whole"
        if local_files_only or constants.HF_HUB_OFFLINE:
            switch = "local_files_only" if local_files_only else "HF_HUB_OFFLINE"
            return f"{missing}, and {switch} keeps it from being fetched; fetch it once without, or give a folder."
        if isinstance(error.__cause__, HfHubHTTPError):
            return f"{missing}. {_status(error.__cause__, repo_id)}"
        return f"{missing}, and {endpoint()} cannot be reached; connect once, or give a folder."
    if isinstance(error, HfHubHTTPError):
        return _status(error, repo_id)
    return f"{endpoint()} cannot be reached ({type(error).__name__}); check the network and run the same again."


def _status(error: HfHubHTTPError, repo_id: str) -> str:
    status = error.response.status_code
    if status == 401:
        if not _signed_in(error):
            return f"{repo_id} needs a login; {LOGIN}, or give a token."
        return f"The Hub does not take the token for {repo_id}; {LOGIN} again, or give another."
    if status == 403:
        return f"This login has no right to that in {repo_id} ({_reason(error)}); use one that has, or another repo."
    if status == 412:
        return f"{repo_id} was changed by someone else meanwhile, and nothing was published; run the same again."
    if status == 429:
        return f"The Hub asks for fewer requests (429); wait a few minutes and run the same again. It was {repo_id}."
    if status >= 500:
        return f"The Hub failed over {repo_id} (status {status}); run the same again later."
    return f"The Hub refused {repo_id} ({status}): {_reason(error)}"


def _signed_in(error: HfHubHTTPError) -> bool:
    return "Authorization" in error.response.request.headers


def _reason(error: HfHubHTTPError) -> str:
    text = error.server_message or str(error)
    return " ".join(text.split()).rstrip(".") or f"status {error.response.status_code}"
