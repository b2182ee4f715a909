"""One scripted backend, and jevproxy before it in three settings: as it comes, in a hurry, and behind nginx."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy import sites
from tests.generation.stage import Client, Scene, Stage, stage
from tests.servers import Program, free_port, start_jevproxy, start_nginx

ROUTES = "decisions,generation"
# Long enough for a busy machine to answer within, short enough to wait for.
TIMEOUT, STREAM_TIMEOUT, STREAM_IDLE, HEALTH_TIMEOUT = 4.0, 8.0, 3.0, 2.0


@pytest.fixture(scope="session")
def backend() -> Iterator[Stage]:
    with stage() as it:
        yield it


@pytest.fixture(scope="session")
def proxy(backend: Stage) -> Iterator[Program]:
    with start_jevproxy(backend.backend.url, OMNI_JEV_ROUTES=ROUTES) as program:
        yield program


@pytest.fixture(scope="session")
def hurried(backend: Stage) -> Iterator[Program]:
    """Short deadlines and two slots."""
    with start_jevproxy(
        backend.backend.url,
        OMNI_JEV_ROUTES=ROUTES,
        OMNI_JEV_TIMEOUT=str(TIMEOUT),
        OMNI_JEV_STREAM_TIMEOUT=str(STREAM_TIMEOUT),
        OMNI_JEV_STREAM_IDLE=str(STREAM_IDLE),
        OMNI_JEV_HEALTH_TIMEOUT=str(HEALTH_TIMEOUT),
        OMNI_JEV_MAX_CONCURRENT="2",
        OMNI_JEV_MAX_BODY_MB="1",
    ) as program:
        yield program


@dataclass(frozen=True)
class Front:
    """Where clients connect: jevproxy itself, or nginx with the shipped site before it."""

    port: int
    tls: ssl.SSLContext | None

    def ask(self, script: str, **more: Any) -> Client:
        return Client(self.port, script, tls=self.tls, **more)


@pytest.fixture(scope="session", params=["jevproxy", "nginx"])
def front(
    request: pytest.FixtureRequest, proxy: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    if request.param == "jevproxy":
        yield Front(proxy.port, None)
        return
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    configuration = sites.configuration(folder, sites.public_site(folder, port, [proxy.port]))
    with start_nginx(folder, configuration, f"https://127.0.0.1:{port}"):
        yield Front(port, tls)


@pytest.fixture
def ok(backend: Stage) -> str:
    """A script that answers at once."""

    def play(scene: Scene) -> None:
        scene.whole(b"{}")

    return backend.plays(play)
