"""The table of everything the Hub answers."""

from __future__ import annotations

import re
from functools import cache
from urllib.parse import unquote

from . import account_api, discussion_api, lfs_api, read_api, write_api
from .call import Call, Endpoint
from .errors import HubError
from .store import Store
from .wire import Request, Response

_PARTS = {
    "kinds": r"(?P<kind>model|dataset|space)s",
    "prefix": r"(?:(?P<kind>dataset|space)s/)?",  # models have none
    "repo": r"(?P<repo>[^/]+/[^/]+)",
    "legacy": r"[^/]+",
    "revision": r"(?P<revision>[^/]+)",  # its slashes arrive encoded
    "name": r"(?P<name>.+)",
    "path": r"(?P<path>.+)",
    "number": r"(?P<number>\d+)",
    "sha256": r"(?P<sha256>[0-9a-f]{64})",
}

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/api/whoami-v2", account_api.whoami),
    ("POST", "/api/validate-yaml", account_api.validate_card),
    ("POST", "/api/repos/create", account_api.create_repo),
    ("DELETE", "/api/repos/delete", account_api.delete_repo),
    ("PUT", "/api/{kinds}/{repo}/settings", account_api.update_settings),
    ("GET", "/api/{kinds}/{repo}/auth-check", account_api.check_read_access),
    ("GET", "/api/{kinds}/{repo}/auth-check/write", account_api.check_write_access),
    ("GET", "/api/{kinds}", read_api.list_repos),
    ("GET", "/api/{kinds}/{repo}", read_api.repo_info),
    ("GET", "/api/{kinds}/{repo}/revision/{revision}", read_api.repo_info),
    ("GET", "/api/{kinds}/{repo}/tree/{revision}", read_api.list_tree),
    ("GET", "/api/{kinds}/{repo}/tree/{revision}/{path}", read_api.list_tree),
    ("POST", "/api/{kinds}/{repo}/paths-info/{revision}", read_api.paths_info),
    ("GET", "/api/{kinds}/{repo}/refs", read_api.list_refs),
    ("GET", "/api/{kinds}/{repo}/commits/{revision}", read_api.list_commits),
    ("HEAD", "/{prefix}{repo}/resolve/{revision}/{path}", read_api.resolve),
    ("GET", "/{prefix}{repo}/resolve/{revision}/{path}", read_api.resolve),
    ("POST", "/api/{kinds}/{repo}/preupload/{revision}", write_api.preupload),
    ("POST", "/api/{kinds}/{repo}/commit/{revision}", write_api.commit),
    ("POST", "/api/{kinds}/{repo}/branch/{name}", write_api.create_branch),
    ("DELETE", "/api/{kinds}/{repo}/branch/{name}", write_api.delete_branch),
    ("POST", "/api/{kinds}/{repo}/tag/{revision}", write_api.create_tag),
    ("DELETE", "/api/{kinds}/{repo}/tag/{name}", write_api.delete_tag),
    ("GET", "/api/{kinds}/{repo}/discussions", discussion_api.list_discussions),
    ("POST", "/api/{kinds}/{repo}/discussions", discussion_api.open_discussion),
    ("GET", "/api/{kinds}/{repo}/discussions/{number}", discussion_api.discussion),
    ("POST", "/api/{kinds}/{repo}/discussions/{number}/comment", discussion_api.comment),
    ("POST", "/api/{kinds}/{repo}/discussions/{number}/title", discussion_api.change_title),
    ("POST", "/api/{kinds}/{repo}/discussions/{number}/status", discussion_api.change_status),
    ("POST", "/api/{kinds}/{repo}/discussions/{number}/merge", discussion_api.merge),
    ("POST", "/{prefix}{repo}.git/info/lfs/objects/batch", lfs_api.batch),
    ("POST", "/{prefix}{repo}.git/info/lfs/objects/verify", lfs_api.verify),
    # The storage, by signed addresses.
    ("PUT", "/{kinds}/{repo}/uploads/{sha256}", lfs_api.put_object),
    ("PUT", "/{kinds}/{repo}/uploads/{sha256}/{number}", lfs_api.put_part),
    ("POST", "/{kinds}/{repo}/uploads/{sha256}/complete", lfs_api.complete),
    ("HEAD", "/{kinds}/{repo}/blobs/{sha256}", lfs_api.get_object),
    ("GET", "/{kinds}/{repo}/blobs/{sha256}", lfs_api.get_object),
    # Ids without a namespace, such as gpt2.
    ("GET", "/api/{kinds}/{legacy}", account_api.no_such_repo),
    ("GET", "/api/{kinds}/{legacy}/revision/{revision}", account_api.no_such_repo),
    ("HEAD", "/{legacy}/resolve/{revision}/{path}", account_api.no_such_repo),
    ("GET", "/{legacy}/resolve/{revision}/{path}", account_api.no_such_repo),
)


def answer(store: Store, request: Request) -> Response:
    """What the Hub answers.

    Raises:
        HubError: it refuses; 501 for what is in no route.
    """
    for method, template, endpoint in ROUTES:
        found = _pattern(template).fullmatch(request.path) if method == request.method else None
        if found is not None:
            args = {name: unquote(value) for name, value in found.groupdict().items() if value is not None}
            return endpoint(Call(store, request, args))
    raise HubError(501, f"The test Hub has no route for {request.method} {request.path}")


@cache
def _pattern(template: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(_PARTS[piece] if place % 2 else re.escape(piece) for place, piece in enumerate(pieces)))
