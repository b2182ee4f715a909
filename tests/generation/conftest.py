"""One scripted backend, and jevproxy before it in three settings: as it comes, in a hurry, and behind nginx."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import Scripted, says, scripted
from tests.callers import Caller
from tests.deploy import sites
from tests.messages import post, response
from tests.servers import Program, free_port, start_jevproxy, start_nginx

ROUTES = "decisions,generation"
CHAT = "/v1/chat/completions"
# Long enough for a busy machine to answer within, short enough to wait for.
TIMEOUT, STREAM_TIMEOUT, STREAM_IDLE, HEALTH_TIMEOUT = 4.0, 8.0, 3.0, 2.0


@pytest.fixture(scope="session")
def backend() -> Iterator[Scripted]:
    """Without a script it says that it is well."""
    with scripted(says(response(b'{"status":"ok"}', b"Content-Type: application/json\r\n"))) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(backend: Scripted) -> Iterator[Program]:
    with start_jevproxy(backend.url, OMNI_JEV_ROUTES=ROUTES) as program:
        yield program


@pytest.fixture(scope="session")
def hurried(backend: Scripted) -> Iterator[Program]:
    """Short deadlines and two slots."""
    with start_jevproxy(
        backend.url,
        OMNI_JEV_ROUTES=ROUTES,
        OMNI_JEV_TIMEOUT=str(TIMEOUT),
        OMNI_JEV_STREAM_TIMEOUT=str(STREAM_TIMEOUT),
        OMNI_JEV_STREAM_IDLE=str(STREAM_IDLE),
        OMNI_JEV_HEALTH_TIMEOUT=str(HEALTH_TIMEOUT),
        OMNI_JEV_MAX_CONCURRENT="2",
        OMNI_JEV_MAX_BODY_MB="1",
    ) as program:
        yield program


@pytest.fixture(scope="session", params=["jevproxy", "nginx"])
def front(
    request: pytest.FixtureRequest, proxy: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """Where clients connect: jevproxy itself, or nginx with the shipped site before it."""
    if request.param == "jevproxy":
        yield proxy
        return
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    configuration = sites.configuration(folder, sites.public_site(folder, port, [proxy.port]))
    with start_nginx(folder, configuration, f"https://127.0.0.1:{port}") as nginx:
        yield nginx


@pytest.fixture
def ok(backend: Scripted) -> str:
    """A script that answers at once."""
    return backend.plays(lambda exchange: exchange.answer())


def chat(program: Program, script: str, *fields: str) -> Caller:
    """A chat that was asked for, on a connection of its own."""
    return Caller(program.url).send(post(script, b"{}", CHAT, *fields))


def event(number: int) -> bytes:
    return b'data: {"n": %d}\n\n' % number
