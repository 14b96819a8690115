"""Endpoints that read: what a repo is, what is in it, and the files themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote

from . import cards
from .call import Call
from .errors import HubError, entry_not_found
from .repo import Commit, File, Repo
from .wire import Response, content, reply

_SORTS: dict[str, Callable[[Repo], Any]] = {
    "downloads": lambda repo: repo.downloads,
    "likes": lambda repo: repo.likes,
    "trendingScore": lambda repo: repo.likes,
    "createdAt": lambda repo: repo.created,
    "lastModified": lambda repo: repo.head.date,
}
#: Fields of a listing's entries that come only when the parameter asks for them; the rest always come.
_ON_REQUEST = {
    "full": {"author", "cardData", "gated", "lastModified", "sha", "siblings"},
    "cardData": {"cardData"},
    "config": {"config"},
}
_SEARCH = {"author", "cursor", "direction", "expand", "filter", "limit", "pipeline_tag", "search", "sort", *_ON_REQUEST}


def repo_info(call: Call) -> Response:
    repo = call.readable()
    info = _info(repo, repo.commit_at(call.args.get("revision", "main")), sizes=call.request.wants("blobs"))
    expand = call.request.query.get("expand")
    if expand:
        info = {name: value for name, value in info.items() if name in {"id", *expand}}
    return reply(info)


def list_repos(call: Call) -> Response:
    """Search: every filter must hold; sorted downwards, by age where nothing is asked."""
    query = call.request.query
    if not query.keys() <= _SEARCH:
        raise HubError(501, f"The test Hub cannot search by {sorted(query.keys() - _SEARCH)}")
    author, text = call.request.ask("author"), (call.request.ask("search") or "").lower()
    wanted = {*query.get("filter", []), *query.get("pipeline_tag", [])}
    found = [
        repo
        for (kind, repo_id), repo in call.store.repos.items()
        if kind == call.kind
        and call.store.visible(repo, call.user)
        and author in {None, repo.namespace}
        and text in repo_id.lower()
        and wanted <= {*cards.tags(kind, repo.head)}
    ]
    found.sort(key=_SORTS[call.request.ask("sort") or "createdAt"], reverse=True)
    asked = {name for parameter, names in _ON_REQUEST.items() if call.request.wants(parameter) for name in names}
    hidden = set().union(*_ON_REQUEST.values()) - asked

    def describe(repo: Repo) -> dict[str, Any]:
        info, expand = _info(repo, repo.head, sizes=False), query.get("expand")
        return {name: info[name] for name in info if (name in {"id", *expand} if expand else name not in hidden)}

    return call.page(found, describe)


def list_tree(call: Call) -> Response:
    repo = call.readable()
    commit = repo.commit_at(call.revision)
    folder = call.args.get("path", "").strip("/")
    below = f"{folder}/" if folder else ""
    entries = sorted(path for path in {*commit.files, *commit.folders()} if path.startswith(below))
    if folder and not entries:
        raise entry_not_found(folder, commit.id)
    if not call.request.wants("recursive"):
        entries = [path for path in entries if "/" not in path.removeprefix(below)]
    expand = call.request.wants("expand")
    return call.page(entries, lambda path: _entry(repo, commit, path, expand))


def paths_info(call: Call) -> Response:
    repo = call.readable()
    commit, form = repo.commit_at(call.revision), call.request.form()
    there = {*commit.files, *commit.folders()}
    expand = form.get("expand", ["false"])[0].lower() == "true"
    return reply([_entry(repo, commit, path, expand) for path in form.get("paths", []) if path in there])


def list_refs(call: Call) -> Response:
    repo = call.readable()

    def under(prefix: str) -> list[dict[str, str]]:
        names = repo.names(prefix).items()
        return [{"name": name, "ref": f"{prefix}{name}", "targetCommit": commit} for name, commit in names]

    refs = {"branches": under("refs/heads/"), "tags": under("refs/tags/"), "converts": under("refs/convert/")}
    if call.request.wants("include_prs"):
        refs["pullRequests"] = under("refs/pr/")
    return reply(refs)


def list_commits(call: Call) -> Response:
    def describe(commit: Commit) -> dict[str, Any]:
        authors = [{"user": commit.author}]
        return {**_commit_line(commit), "message": commit.message, "authors": authors}

    return call.page(list(call.readable().history(call.revision)), describe)


def resolve(call: Call) -> Response:
    """A file, to HEAD and GET: the bytes of a regular one, the way to the storage of an LFS one."""
    repo = call.readable()
    call.store.check_gate(repo, call.user)
    commit = repo.commit_at(call.revision)
    file = commit.file(call.args["path"])
    headers = {"X-Repo-Commit": commit.id, "ETag": f'"{file.etag}"'}
    if not file.lfs:
        return content(file.data, call.request.byte_range, headers)
    linked = {"X-Linked-ETag": f'"{file.etag}"', "X-Linked-Size": str(len(file.data))}
    location = call.store.signed("read", f"/{repo.kind}s/{quote(repo.id)}/blobs/{file.sha256}")
    return Response(302, b"", {"X-Repo-Commit": commit.id, **linked, "Location": location})


def _info(repo: Repo, commit: Commit, sizes: bool) -> dict[str, Any]:
    card = cards.card_data(commit)
    info: dict[str, Any] = {
        "id": repo.id,
        "author": repo.namespace,
        "sha": commit.id,
        "lastModified": time_text(commit.date),
        "createdAt": time_text(repo.created),
        "private": repo.private,
        "gated": repo.gated,
        "disabled": False,
        "downloads": repo.downloads,
        "likes": repo.likes,
        "tags": cards.tags(repo.kind, commit),
        "siblings": [_sibling(path, file, sizes) for path, file in sorted(commit.files.items())],
        "usedStorage": sum(len(file.data) for file in commit.files.values()),
    }
    if card:
        # The Hub sends JSON, which has no dates: a YAML date arrives as text.
        info["cardData"] = json.loads(json.dumps(card, default=str))
    if repo.kind == "model":
        info["config"] = _config(commit)
        info |= {name: card[name] for name in ("library_name", "pipeline_tag", "model-index") if name in card}
    return info


def _config(commit: Commit) -> dict[str, Any]:
    """The few fields of ``config.json`` that the Hub shows."""
    try:
        config = json.loads(commit.files["config.json"].data)
    except (KeyError, ValueError):
        return {}
    return {name: config[name] for name in ("architectures", "model_type") if name in config}


def _sibling(path: str, file: File, sizes: bool) -> dict[str, Any]:
    if not sizes:
        return {"rfilename": path}
    described = {"rfilename": path, "blobId": file.blob_id, "size": len(file.data)}
    return {**described, "lfs": _lfs(file, "sha256")} if file.lfs else described


def _entry(repo: Repo, commit: Commit, path: str, expand: bool) -> dict[str, Any]:
    if path not in commit.files:
        inside = next(name for name in sorted(commit.files) if name.startswith(f"{path}/"))
        entry: dict[str, Any] = {"type": "directory", "path": path, "oid": commit.files[inside].blob_id, "size": 0}
        changed = inside
    else:
        file, changed = commit.files[path], path
        entry = {"type": "file", "path": path, "oid": file.blob_id, "size": len(file.data)}
        if file.lfs:
            entry["lfs"] = _lfs(file, "oid")
    if expand:
        entry["lastCommit"] = _commit_line(repo.last_change(commit, changed))
    return entry


def _lfs(file: File, digest: str) -> dict[str, Any]:
    return {digest: file.sha256, "size": len(file.data), "pointerSize": len(file.pointer)}


def _commit_line(commit: Commit) -> dict[str, str]:
    return {"id": commit.id, "title": commit.title, "date": time_text(commit.date)}


def time_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
