"""HTTP/1.1 on a socket: requests in, answers out, and the faults in between."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from .errors import HubError, bad_request
from .faults import Action, Drop, Exchange, Failure, Faults


@dataclass(frozen=True)
class Request:
    """A request, whole.

    Attributes:
        path: as sent (percent-encoded), without the query.
        query: name -> values.
        authorization: the header, if there was one.
        byte_range: the ``Range`` header, if there was one.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    authorization: str | None
    byte_range: str | None
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise bad_request("The body is not JSON") from error

    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.body.decode(), keep_blank_values=True)

    def ask(self, name: str) -> str | None:
        """The first value of a query parameter."""
        return self.query.get(name, [None])[0]

    def wants(self, name: str) -> bool:
        return (self.ask(name) or "").lower() in {"1", "true"}


@dataclass(frozen=True)
class Response:
    """An answer; ``Content-Length`` is added on the way out."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``content`` as JSON."""
    return Response(status, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})


def refusal(error: HubError) -> Response:
    text = str(error)
    one_line = " ".join(text.split()).encode("ascii", "replace").decode()
    headers = {"X-Error-Message": one_line, **error.headers}
    if error.code is not None:
        headers["X-Error-Code"] = error.code
    return reply({"error": text}, error.status, headers)


def content(data: bytes, byte_range: str | None, headers: Mapping[str, str]) -> Response:
    """The bytes of a file, or the range asked for (RFC 9110, one range)."""
    described = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **headers}
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", byte_range or "")
    if asked is None or asked.group() == "bytes=-":
        return Response(200, data, described)
    first, last = asked.groups()
    start = int(first) if first else max(len(data) - int(last), 0)
    stop = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= stop:
        return Response(416, b"", {"Content-Range": f"bytes */{len(data)}"})
    return Response(206, data[start:stop], {**described, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})


class Server(ThreadingHTTPServer):
    """A listening socket whose every connection dies with it, as when the machine goes down.

    Attributes:
        crashes: takes what the endpoints raise beside ``HubError``: faults of this server, which a test must not miss.
    """

    request_queue_size = 64

    def __init__(
        self, port: int, faults: Faults, answer: Callable[[Request], Response], crashes: list[Exception]
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.faults = faults
        self.answer = answer
        self.crashes = crashes
        self.up = True
        self.connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Stop listening and cut every connection, answered or not."""
        self.up = False
        self.shutdown()
        self.server_close()
        with self._connections_lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def opened(self, connection: socket.socket) -> None:
        with self._connections_lock:
            self.connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._connections_lock:
            self.connections.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    """One connection: reads its requests and writes the answers, until one of both sides closes it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client hung up, or the server was stopped
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: what was asked is in the log of the faults."""

    def serve(self) -> None:
        path, _, query = self.path.partition("?")
        exchange = Exchange(self.command, path, query, "Authorization" in self.headers)
        fault = self.server.faults.strike(exchange)
        if isinstance(fault, Drop) and fault.during == "request":
            self.rfile.read(min(fault.after_bytes, self._body_length()))
            self._hang_up()
            return
        if isinstance(fault, Action):
            fault.run()
        if not self.server.up:
            self._hang_up()
            return
        body = self.rfile.read(self._body_length())
        if len(body) < self._body_length():
            self._hang_up()  # the client went away while it was sending
            return
        request = Request(
            self.command, path, parse_qs(query), self.headers.get("Authorization"), self.headers.get("Range"), body
        )
        response = self._answer(request, fault if isinstance(fault, Failure) else None)
        cut = fault.after_bytes if isinstance(fault, Drop) else None
        if cut is None:
            exchange.status = response.status
        self._send(response, cut)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = serve  # noqa: N815

    def _answer(self, request: Request, failure: Failure | None) -> Response:
        if failure is not None:
            return refusal(HubError(failure.status, "Failed as planned", headers=dict(failure.headers)))
        try:
            return self.server.answer(request)
        except HubError as error:
            return refusal(error)
        except Exception as error:
            self.server.crashes.append(error)
            return refusal(HubError(500, repr(error)))

    def _send(self, response: Response, cut: int | None) -> None:
        """Write the answer; with ``cut``, only that many bytes of its body, and with 0 nothing at all."""
        if cut != 0:
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body[:cut])
        if cut is not None:
            self._hang_up()

    def _body_length(self) -> int:
        return int(self.headers.get("Content-Length", 0))

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
