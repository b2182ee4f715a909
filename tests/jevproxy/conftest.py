"""One running jevproxy for each set of settings, shared by the tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.backends import Caller, Reply, Scripted, get, scripted
from tests.jevproxy.scripts import SCRIPTS
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
        with self.caller() as caller:
            return caller.ask(data)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples whose line begins with `name`."""
        lines = self.ask(get(path="/metrics")).body.decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def becomes_idle(self) -> None:
        wait_until(lambda: self.metric("jevproxy_in_flight") == 0, what="every slot being free")

    def log_lines(self) -> list[str]:
        return [line for line in self.proxy.output().splitlines() if line.startswith("{")]


@pytest.fixture(scope="session")
def backend() -> Iterator[Scripted]:
    with scripted(SCRIPTS) as running:
        yield running


@pytest.fixture(scope="session")
def pair(backend: Scripted) -> Iterator[Pair]:
    """The defaults, but for a deadline that a test can wait for and a body limit that a test can send."""
    settings = {"OMNI_JEV_TIMEOUT": "3", "OMNI_JEV_HEALTH_TIMEOUT": "0.6", "OMNI_JEV_MAX_BODY_MB": "1"}
    with start_jevproxy(backend.url, **settings) as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


@pytest.fixture(scope="session")
def patient(backend: Scripted) -> Iterator[Pair]:
    """The defaults, but for three slots."""
    with start_jevproxy(backend.url, OMNI_JEV_MAX_CONCURRENT="3") as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


def assert_quiet(proxy: Program) -> None:
    """Nothing but gunicorn's own news and the access log was written."""
    odd = [
        line
        for line in proxy.output().splitlines()
        if not line.startswith("{") and "[INFO]" not in line and line.strip()
    ]
    assert not odd, "\n".join(odd[:40])
