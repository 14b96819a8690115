"""What an endpoint is given: the request, its caller, and the parts of its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlencode

from .errors import bad_request, unauthenticated
from .repo import Kind, Repo
from .store import Store, User
from .wire import Request, Response, reply

#: As many entries a page as the Hub gives, where the client does not ask for fewer.
PAGE = 1000


@dataclass(frozen=True)
class Call:
    """One request on its way to an endpoint.

    Attributes:
        args: the parts of the address that the route names, decoded.
    """

    store: Store
    request: Request
    args: Mapping[str, str] = field(default_factory=dict)

    @property
    def user(self) -> User | None:
        return self.store.sign_in(self.request.authorization)

    @property
    def signed_in(self) -> User:
        user = self.user
        if user is None:
            raise unauthenticated()
        return user

    @property
    def kind(self) -> Kind:
        return cast(Kind, self.args.get("kind") or "model")

    @property
    def revision(self) -> str:
        return self.args["revision"]

    def readable(self) -> Repo:
        """The repo of the address, if the caller may see it."""
        return self.store.readable(self.kind, self.args["repo"], self.user)

    def writable(self) -> Repo:
        return self.store.writable(self.kind, self.args["repo"], self.user)

    def json(self) -> dict[str, Any]:
        body = self.request.json()
        if not isinstance(body, dict):
            raise bad_request("The body must be a JSON object")
        return body

    def page(self, items: Sequence[Any], describe: Callable[[Any], Any] = lambda item: item) -> Response:
        """One page of a listing, and the address of the next in ``Link``."""
        start, count = int(self.request.ask("cursor") or 0), min(int(self.request.ask("limit") or PAGE), PAGE)
        headers = {}
        if start + count < len(items):
            query = urlencode({**self.request.query, "cursor": [start + count]}, doseq=True)
            headers["Link"] = f'<{self.store.url}{self.request.path}?{query}>; rel="next"'
        return reply([describe(item) for item in items[start : start + count]], headers=headers)


Endpoint = Callable[[Call], Response]
