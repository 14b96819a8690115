"""The repo that a push goes to: looked up, with everything that would refuse the push, before any work is done."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HFValidationError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from mathneuro_hub.adapter.config import CONFIG_FILE, NeurosurgeryConfig
from mathneuro_hub.errors import FormatError, HubError
from mathneuro_hub.publishing.card import CARD_FILE
from mathneuro_hub.remote import LOGIN, clear_errors, client, endpoint, fetch

_TAG = "refs/tags/"
_NEUTRAL = (".gitattributes", ".gitignore", CARD_FILE, "LICENSE*", "NOTICE*")


@dataclass(frozen=True)
class Target:
    """A repo as it is before a push.

    Attributes:
        repo_id: ``owner/name``.
        branch: where the commit goes; None for ``main``.
        tag: the tag to put on the commit, if any.
        exists: whether the repo is there.
        branch_exists: whether the branch is there.
        private: whether the repo is private.
        parent: the commit that the push builds on; None for a new repo.
        files: every path in that commit.
        card: the text of its card, if it has one.
        config: of the adapter that it holds, if it holds one.
    """

    repo_id: str
    branch: str | None = None
    tag: str | None = None
    exists: bool = False
    branch_exists: bool = False
    private: bool = False
    parent: str | None = None
    files: frozenset[str] = frozenset()
    card: str | None = None
    config: NeurosurgeryConfig | None = None

    @property
    def holds(self) -> str | None:
        """``adapter``, ``model`` (baked, by us), or None for nothing of ours."""
        if CONFIG_FILE not in self.files:
            return None
        return "model" if "config.json" in self.files else "adapter"


def look_up(
    repo_id: str,
    *,
    revision: str | None = None,
    create_pr: bool = False,
    private: bool = False,
    token: str | None = None,
) -> Target:
    """The repo of a push, with the right to write there checked as far as it can be without writing.

    Args:
        repo_id: ``owner/name``, or ``name`` for the user who is logged in.
        revision: a branch, made when it is missing, or ``refs/tags/NAME`` for a commit on ``main`` that gets this tag.
        create_pr: propose the commit as a pull request.
        private: the repo has to be private.
        token: instead of the stored login.

    Raises:
        HubError: no login, no right to write, a name that the Hub refuses, a repo that holds something else, or one that
            is public where it has to be private.
    """
    api = client(token)
    repo_id = _own(api, repo_id, create_pr)
    tag = revision.removeprefix(_TAG) if revision and revision.startswith(_TAG) else None
    branch = None if tag or revision == "main" else revision
    with clear_errors(repo_id, revision=revision):
        try:
            info = api.model_info(repo_id)
        except RepositoryNotFoundError as error:
            if create_pr:
                raise HubError(
                    f"There is no repo {repo_id!r} to open a pull request in; push without --create-pr to make it."
                ) from error
            return Target(repo_id, branch, tag)
        if private and not info.private:
            raise HubError(f"{repo_id} is public already; make it private in its settings first, or push elsewhere.")
        refs = api.list_repo_refs(repo_id)
        tags = {entry.name for entry in refs.tags}
        if (tag or branch) in tags:
            raise HubError(f"{repo_id} has a tag {tag or branch!r} already, and tags stay; choose another revision.")
        branch_exists = branch is None or branch in {entry.name for entry in refs.branches}
        if branch is not None and branch_exists:
            try:
                info = api.model_info(repo_id, revision=branch)
            except RevisionNotFoundError:
                branch_exists = False
    if create_pr and not branch_exists:
        raise HubError(f"{repo_id} has no branch {branch!r} to propose a change to; leave --revision out.")
    files = frozenset(sibling.rfilename for sibling in info.siblings or ())
    _check_ours(repo_id, files)
    folder = fetch(repo_id, "repo", revision=info.sha, patterns=[CARD_FILE, CONFIG_FILE], token=token)
    card, config = folder / CARD_FILE, folder / CONFIG_FILE
    return Target(
        repo_id,
        branch,
        tag,
        exists=True,
        branch_exists=branch_exists,
        private=bool(info.private),
        parent=info.sha,
        files=files,
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        config=_config(config.read_text(encoding="utf-8", errors="replace")) if config.is_file() else None,
    )


def _own(api: HfApi, repo_id: str, create_pr: bool) -> str:
    """The whole id, with the name of the user who is logged in where there is none."""
    with clear_errors(repo_id):
        try:
            me = api.whoami()
        except LocalTokenNotFoundError as error:
            raise HubError(f"There is no login for {endpoint()}; {LOGIN}, or give --token.") from error
    whole = repo_id if "/" in repo_id else f"{me['name']}/{repo_id}"
    try:
        validate_repo_id(whole)
    except HFValidationError as error:
        raise HubError(
            f"The Hub takes no repo named {whole!r}; use letters, digits, '-', '_' and '.', as TEAM/NAME."
        ) from error
    roles = {org["name"]: org.get("roleInOrg", "write") for org in me.get("orgs", [])} | {me["name"]: "admin"}
    owner = whole.split("/")[0]
    if create_pr:
        return whole
    if roles.get(owner, "read") == "read":
        raise HubError(
            f"{me['name']} has no right to write to {owner}; push to one of "
            f"{', '.join(name for name, role in roles.items() if role != 'read')}, or propose it with --create-pr."
        )
    if me.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise HubError(f"The token of {me['name']} may only read; use one with write access.")
    return whole


def _check_ours(repo_id: str, files: frozenset[str]) -> None:
    others = sorted(path for path in files if not any(fnmatch.fnmatchcase(path, pattern) for pattern in _NEUTRAL))
    if others and CONFIG_FILE not in files:
        raise HubError(
            f"{repo_id} holds something else ({', '.join(others[:3])}), and no adapter; push to another repo."
        )


def _config(text: str) -> NeurosurgeryConfig | None:
    """None for a damaged one or one of a newer version: it is about to be replaced."""
    try:
        return NeurosurgeryConfig.from_json(text, CONFIG_FILE)
    except FormatError:
        return None
