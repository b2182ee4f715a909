"""One running jevproxy for each set of settings, shared by the tests that need no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.backends import OK, Exchange, Scripted, scripted
from tests.callers import PATIENCE, Caller, ask
from tests.jevproxy.scripts import SCRIPTS
from tests.messages import Reply, get
from tests.servers import Program, start_jevproxy, wait_until


@dataclass
class Pair:
    """A jevproxy and the scripted backend behind it."""

    proxy: Program
    backend: Scripted

    def caller(self) -> Caller:
        return Caller(self.proxy.url)

    def ask(self, data: bytes) -> Reply:
        """One request on a connection of its own."""
        return ask(self.proxy.url, data)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples whose line begins with `name`."""
        lines = self.ask(get(path="/metrics")).body.decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def becomes_idle(self) -> None:
        wait_until(lambda: self.metric("jevproxy_in_flight") == 0, what="every slot being free")

    def logged(self, request_id: str) -> dict[str, Any]:
        """The access log's line of one request; it is written once the answer has left."""
        lines: list[str] = []

        def found() -> bool:
            lines[:] = [line for line in self.proxy.lines() if f'"id":"{request_id}"' in line]
            return bool(lines)

        wait_until(found, what=f"a log line for {request_id}")
        assert len(lines) == 1
        line: dict[str, Any] = json.loads(lines[0])
        return line


@pytest.fixture(scope="session")
def backend() -> Iterator[Scripted]:
    with scripted(SCRIPTS) as running:
        yield running


@pytest.fixture(scope="session")
def pair(backend: Scripted) -> Iterator[Pair]:
    """The defaults, but for a body limit that a test can send."""
    with start_jevproxy(backend.url, OMNI_JEV_MAX_BODY_MB="1") as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


@pytest.fixture(scope="session")
def hasty(backend: Scripted) -> Iterator[Pair]:
    """The defaults, but for a deadline that a test can wait for. What is to be answered in time is for another."""
    with start_jevproxy(backend.url, OMNI_JEV_TIMEOUT="1.5") as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


@pytest.fixture(scope="session")
def patient(backend: Scripted) -> Iterator[Pair]:
    """The defaults, but for three slots."""
    with start_jevproxy(backend.url, OMNI_JEV_MAX_CONCURRENT="3") as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


@pytest.fixture
def backend_of_seconds() -> Iterator[Pair]:
    """A backend of its own, whose connections are counted. It answers 200 requests together, after a second."""
    together = threading.Barrier(200)

    def second(exchange: Exchange) -> None:
        together.wait(PATIENCE)
        exchange.backend.released.wait(1.0)
        exchange.send(OK)

    with (
        scripted({"second": second}) as backend,
        start_jevproxy(backend.url, OMNI_JEV_POOL_IDLE="60") as proxy,
    ):
        backend.connections = 0
        yield Pair(proxy, backend)
        assert_quiet(proxy)


def assert_quiet(proxy: Program) -> None:
    """Nothing but gunicorn's own news and the access log was written."""
    odd = [
        line for line in proxy.lines() if not line.startswith("{") and "[INFO]" not in line and line.strip()
    ]
    assert not odd, "\n".join(odd[:40])
