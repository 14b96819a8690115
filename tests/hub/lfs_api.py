"""Endpoints of large files: git-lfs' batch protocol, basic and in parts, and the storage behind it.

The storage listens on an origin of its own and is addressed by signed URLs only. Like S3 it refuses a request that carries a
second permission, so that a client which sends its token there fails.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from .call import Call
from .errors import HubError, bad_request, entry_not_found
from .repo import Repo
from .wire import Response, content, reply


def batch(call: Call) -> Response:
    """Where to send each object; an object that is there gets no ``actions``."""
    repo, body = call.writable(), call.json()
    if body.get("operation") != "upload" or body.get("hash_algo", "sha256") != "sha256":
        raise bad_request("Only uploads by sha256 are served")
    in_parts = "multipart" in body.get("transfers", [])
    objects = [_instructions(call, repo, item["oid"], item["size"], in_parts) for item in body["objects"]]
    parts = any("chunk_size" in item.get("actions", {}).get("upload", {}).get("header", {}) for item in objects)
    return reply({"transfer": "multipart" if parts else "basic", "objects": objects})


def verify(call: Call) -> Response:
    body = call.json()
    data = call.writable().lfs_objects.get(body["oid"])
    if data is None or len(data) != body["size"]:
        raise HubError(404, f"The LFS object {body['oid']} was not uploaded")
    return reply({})


def complete(call: Call) -> Response:
    """Make one object of its parts. The client sends no token here: the address carries a signature."""
    repo = _signed_repo(call, "write")
    body = call.json()
    parts = repo.lfs_parts.get(body["oid"], {})
    for sent in body["parts"]:
        if sent["etag"].strip('"') != _etag(parts.get(sent["partNumber"], b"")):
            raise bad_request(f"Part {sent['partNumber']} of {body['oid']} is missing or another")
    _keep(repo, body["oid"], b"".join(parts[sent["partNumber"]] for sent in body["parts"]))
    repo.lfs_parts.pop(body["oid"], None)
    return reply({})


def put_object(call: Call) -> Response:
    _keep(_signed_repo(call, "write"), call.args["sha256"], call.request.body)
    return Response()


def put_part(call: Call) -> Response:
    repo = _signed_repo(call, "write")
    repo.lfs_parts.setdefault(call.args["sha256"], {})[int(call.args["number"])] = call.request.body
    return Response(headers={"ETag": f'"{_etag(call.request.body)}"'})


def get_object(call: Call) -> Response:
    data = _signed_repo(call, "read").lfs_objects.get(call.args["sha256"])
    if data is None:
        raise entry_not_found(call.args["sha256"])
    return content(data, call.request.byte_range, {"ETag": f'"{call.args["sha256"]}"'})


def _instructions(call: Call, repo: Repo, oid: str, size: int, in_parts: bool) -> dict[str, Any]:
    if oid in repo.lfs_objects:
        return {"oid": oid, "size": size}
    base = f"/{repo.kind}s/{repo.id}/uploads/{oid}"
    upload: dict[str, Any] = {"href": call.store.signed("write", base), "header": {}}
    if in_parts and size > call.store.part_size:
        count = -(-size // call.store.part_size)
        header = {str(part): call.store.signed("write", f"{base}/{part}") for part in range(1, count + 1)}
        upload["header"] = {"chunk_size": str(call.store.part_size), **header}
        upload["href"] = call.store.signed("write", f"{base}/complete")
    address = f"{call.store.url}/{repo.path}.git/info/lfs/objects/verify"
    return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": {"href": address, "header": {}}}}


def _signed_repo(call: Call, action: Literal["read", "write"]) -> Repo:
    if call.request.authorization is not None:
        raise bad_request("Only one auth mechanism allowed")
    call.store.check_signature(action, call.request.path, call.request.ask("signature") or "")
    return call.store.repos[call.kind, call.args["repo"]]


def _keep(repo: Repo, oid: str, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != oid:
        raise bad_request(f"The content is not the one of {oid}")
    repo.lfs_objects[oid] = data


def _etag(part: bytes) -> str:
    return hashlib.md5(part, usedforsecurity=False).hexdigest()
