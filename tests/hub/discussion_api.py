"""Endpoints of pull requests and discussions."""

from __future__ import annotations

from typing import Any

from .call import Call
from .errors import HubError, forbidden
from .read_api import time_text
from .repo import Event, PullRequest, Repo
from .wire import Response, reply


def list_discussions(call: Call) -> Response:
    repo = call.readable()
    listed = [_summary(repo, pull) for pull in reversed(repo.pulls.values())]
    return reply({"discussions": listed, "count": len(listed), "start": 0})


def open_discussion(call: Call) -> Response:
    repo, body = call.readable(), call.json()
    base = "main" if body.get("pullRequest") else None
    pull = repo.open_discussion(body["title"], body.get("description") or "", call.signed_in.name, base)
    return reply({"num": pull.number, "url": f"{call.store.url}/{repo.path}/discussions/{pull.number}"})


def discussion(call: Call) -> Response:
    repo = call.readable()
    pull = _find(call, repo)
    details: dict[str, Any] = {
        **_summary(repo, pull),
        "events": [_event(pull, place) for place in range(len(pull.events))],
    }
    if pull.base is not None:
        details["changes"] = {"base": f"refs/heads/{pull.base}", "mergeCommitId": pull.merge_commit}
        details["filesWithConflicts"] = []
    return reply(details)


def comment(call: Call) -> Response:
    data = {"edited": False, "hidden": False, "latest": {"raw": call.json()["comment"]}}
    pull = _find(call, call.readable())
    return _add(call, pull, "newMessage", Event("comment", call.signed_in.name, call.store.clock(), data))


def change_title(call: Call) -> Response:
    pull, title = _owned(call), call.json()["title"]
    event = Event("title-change", call.signed_in.name, call.store.clock(), {"from": pull.title, "to": title})
    pull.title = title
    return _add(call, pull, "newTitle", event)


def change_status(call: Call) -> Response:
    pull, status = _owned(call), call.json()["status"]
    pull.status = status
    return _add(
        call, pull, "newStatus", Event("status-change", call.signed_in.name, call.store.clock(), {"status": status})
    )


def merge(call: Call) -> Response:
    repo = call.writable()
    pull = _find(call, repo)
    repo.merge(pull, call.signed_in.name)
    return reply({"newStatus": _event(pull, -1)})


def _find(call: Call, repo: Repo) -> PullRequest:
    number = int(call.args["number"])
    if number not in repo.pulls:
        raise HubError(404, f"Discussion not found: {number}")
    return repo.pulls[number]


def _owned(call: Call) -> PullRequest:
    """The discussion, if the caller opened it or may write to the repo."""
    repo = call.readable()
    pull = _find(call, repo)
    if pull.author != call.signed_in.name and not call.signed_in.may_write(repo.namespace):
        raise forbidden("You cannot change this discussion")
    return pull


def _add(call: Call, pull: PullRequest, answer: str, event: Event) -> Response:
    pull.events.append(event)
    return reply({answer: _event(pull, -1)})


def _summary(repo: Repo, pull: PullRequest) -> dict[str, Any]:
    return {
        "num": pull.number,
        "title": pull.title,
        "status": pull.status,
        "createdAt": time_text(pull.date),
        "author": {"name": pull.author},
        "repo": {"name": repo.id, "type": repo.kind},
        "isPullRequest": pull.base is not None,
    }


def _event(pull: PullRequest, place: int) -> dict[str, Any]:
    event = pull.events[place]
    number = place % len(pull.events)
    described = {"type": event.kind, "createdAt": time_text(event.date), "author": {"name": event.author}}
    return {"id": f"{pull.number}-{number}", **described, "data": dict(event.data)}
