"""What can go wrong between a client and the Hub, on demand; and the log of what was asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Exchange:
    """One request as it arrived, and what became of it.

    Attributes:
        path: as sent (percent-encoded), without the query.
        status: of the answer; None while there is none, and for good when the connection was dropped.
    """

    method: str
    path: str
    query: str
    has_auth: bool
    status: int | None = None


@dataclass
class Fault:
    """Applies to the next ``times`` requests that match, after letting ``skip`` of them pass."""

    method: str
    path: re.Pattern[str]
    times: int
    skip: int

    def strikes(self, exchange: Exchange) -> bool:
        if self.times == 0 or exchange.method != self.method or not self.path.search(exchange.path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Failure(Fault):
    """Answer with an error and do nothing."""

    status: int
    headers: Mapping[str, str]


@dataclass
class Drop(Fault):
    """Close the connection in the middle of the request's or the answer's body."""

    during: Literal["request", "response"]
    after_bytes: int


@dataclass
class Action(Fault):
    """Run something when the request has arrived and before it is answered."""

    run: Callable[[], object]


@dataclass
class Faults:
    """The faults still to come, oldest first, and the log. Safe to use from several threads."""

    planned: list[Fault] = field(default_factory=list)
    log: list[Exchange] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, fault: Fault) -> None:
        with self._lock:
            self.planned.append(fault)

    def strike(self, exchange: Exchange) -> Fault | None:
        """Log a request and say which fault, if any, befalls it; every planned fault counts it until one does."""
        with self._lock:
            self.log.append(exchange)
            return next((fault for fault in self.planned if fault.strikes(exchange)), None)
