"""Endpoints of accounts and of whole repos: who am I, create, delete, settings, card validation."""

from __future__ import annotations

from typing import cast

from . import cards
from .call import Call
from .errors import HubError, bad_request, repo_not_found
from .repo import Kind
from .wire import Response, reply


def whoami(call: Call) -> Response:
    user = call.signed_in
    orgs = [{"type": "org", "name": name, "fullname": name, "roleInOrg": role} for name, role in user.orgs.items()]
    token = {"displayName": "test", "role": user.token_role}
    auth = {"type": "access_token", "accessToken": token}
    return reply({"type": "user", "name": user.name, "fullname": user.name, "orgs": orgs, "auth": auth})


def create_repo(call: Call) -> Response:
    body = call.json()
    kind, repo_id = _named(call)
    address = {"url": f"{call.store.url}/{'' if kind == 'model' else f'{kind}s/'}{repo_id}"}
    try:
        call.store.create(kind, repo_id, call.user, private=body.get("visibility") == "private")
    except HubError as error:
        if error.status == 409:  # the client that does not mind reads the address all the same
            return reply({"error": str(error), **address}, 409)
        raise
    return reply(address)


def delete_repo(call: Call) -> Response:
    kind, repo_id = _named(call)
    repo = call.store.writable(kind, repo_id, call.user)
    del call.store.repos[repo.kind, repo.id]
    return reply({})


def update_settings(call: Call) -> Response:
    repo, body = call.writable(), call.json()
    if "visibility" in body:
        repo.private = body["visibility"] == "private"
    if "gated" in body:
        repo.gated = body["gated"]
    return reply({"private": repo.private, "gated": repo.gated})


def check_read_access(call: Call) -> Response:
    call.store.check_gate(call.readable(), call.user)
    return reply({})


def check_write_access(call: Call) -> Response:
    call.writable()
    return reply({})


def validate_card(call: Call) -> Response:
    card = call.json()["content"]
    found = cards.errors(card)
    if found:
        return reply({"errors": [{"message": message} for message in found]}, 400)
    return reply({"errors": [], "warnings": [{"message": message} for message in cards.warnings(card)]})


def no_such_repo(call: Call) -> Response:
    """An id without a namespace: there are none here."""
    raise repo_not_found(signed_in=call.user is not None)


def _named(call: Call) -> tuple[Kind, str]:
    """The repo that the body names; without an organization it is the caller's."""
    body = call.json()
    kind = body.get("type") or "model"
    if kind not in {"model", "dataset", "space"} or not isinstance(body.get("name"), str):
        raise bad_request("The body must name a repo and its type")
    return cast(Kind, kind), f"{body.get('organization') or call.signed_in.name}/{body['name']}"
