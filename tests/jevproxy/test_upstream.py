"""The backend's connections: reused while they live, noticed when they died, verified where they are TLS."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jevproxy.errors import BadRequest
from jevproxy.idle import RELEARN, SETTLE, IdleLimit
from jevproxy.transport import Outgoing
from tests.backends import OK, Exchange, Scripted, cuts, scripted
from tests.callers import Caller, together
from tests.jevproxy.conftest import Pair, assert_quiet
from tests.messages import get, post
from tests.servers import free_port, start_jevproxy, wait_until


def impatient(connection: socket.socket) -> socket.socket:
    """Ends a connection after a second without a request."""
    connection.settimeout(1.0)
    return connection


def test_a_backend_that_closes_idle_connections_gives_no_502_and_no_request_twice() -> None:
    """A thousand requests on 100 connections, with pauses around the moment of the close.

    jevproxy has seen one close before: until then it does not know the backend's limit.
    """
    statuses: list[int] = []
    with scripted({}, impatient) as backend:
        with start_jevproxy(backend.url) as proxy:
            with Caller(proxy.url) as caller:
                assert caller.ask(post()).status == 200
                wait_until(lambda: backend.open == 0, what="the close")
                assert caller.ask(post()).status == 200

            def work(number: int) -> None:
                pause = random.Random(number)
                with Caller(proxy.url) as caller:
                    for turn in range(10):
                        request = post("ok", b"{}", "/v1/systemone", f"x-marker: m{number}.{turn}.")
                        statuses.append(caller.ask(request).status)
                        threading.Event().wait(pause.uniform(1.0, 1.2))

            together(100, work)
            assert_quiet(proxy)
        assert Counter(statuses) == {200: 1000}
        markers = [value for seen in backend.seen for value in seen.values("x-marker")]
        assert len(markers) == len(set(markers)) == 1000


@pytest.mark.parametrize("callers", [1, 8])
def test_a_backend_that_closes_after_each_answer_gives_no_502(callers: int) -> None:
    """Unannounced. A close that is under way as the next request leaves cannot be seen: those stay far below 1 %."""
    with scripted({"closes": cuts(OK)}) as backend, start_jevproxy(backend.url) as proxy:
        statuses: list[int] = []

        def work(_: int) -> None:
            with Caller(proxy.url) as caller:
                for _ in range(100):
                    statuses.append(caller.ask(post("closes")).status)

        together(callers, work)
        assert len(statuses) == 100 * callers
        assert statuses.count(200) >= 99 * callers
        assert len(backend.of("x-script: closes")) == statuses.count(200), "none was sent twice"


def test_idle_connections_past_the_limit_are_closed_and_the_next_wave_opens_new_ones() -> None:
    with scripted({}) as backend, start_jevproxy(backend.url, OMNI_JEV_POOL_IDLE="0.5") as proxy:
        with Caller(proxy.url) as caller:
            assert caller.ask(post()).status == 200
        wait_until(lambda: backend.open == 0, what="the backend's connections being closed")
        opened = backend.connections
        with Caller(proxy.url) as caller:
            assert [caller.ask(post()).status for _ in range(5)] == [200] * 5
        assert opened < backend.connections < opened + 5


def test_without_a_backend_502_and_with_it_again_200() -> None:
    port = free_port()
    with start_jevproxy(f"http://127.0.0.1:{port}") as proxy, Caller(proxy.url) as caller:
        for _ in range(3):
            reply = caller.ask(post())
            assert (reply.status, reply.error_type) == (502, "bad_gateway")
            assert str(port) not in reply.body.decode()
        assert caller.ask(get(path="/health")).status == 502
        assert b'jevproxy_failures_total{kind="connect"}' in caller.ask(get(path="/metrics")).body


@pytest.mark.parametrize("prefix", ["", "/base", "/base/v2/"])
def test_a_path_prefix_stands_before_every_target(prefix: str) -> None:
    with scripted({}) as backend, start_jevproxy(backend.url + prefix) as proxy, Caller(proxy.url) as caller:
        caller.ask(get("ok", "/v1/models?a=%20b&c=/../"))
        caller.ask(get("ok", "http://elsewhere.test/v1/models?x", "x-marker: absolute"))
        targets = [seen.target for seen in backend.of("/v1/models")]
        assert targets == [f"{prefix.rstrip('/')}/v1/models{query}" for query in ("?a=%20b&c=/../", "?x")]
        assert backend.of("x-marker")[0].values("host") == [backend.url.removeprefix("http://")]


def test_nothing_is_invented(pair: Pair) -> None:
    pair.ask(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nx-marker: bare\r\n\r\n")
    (seen,) = pair.backend.of("x-marker: bare")
    names = [line.partition(":")[0] for line in seen.head.decode().split("\r\n")[1:] if line]
    assert names == ["Host", "X-Marker", "X-Request-Id"]


def test_what_a_client_sends_twice_arrives_twice_and_hop_by_hop_fields_do_not_arrive(pair: Pair) -> None:
    fields = [
        "Authorization: Bearer a", "X-A: 1", "X-A: 2", "Cookie: a=1", "Connection: x-hop, keep-alive", "X-Hop: 1",
        "TE: trailers", "Keep-Alive: 1", "Proxy-Authorization: x", "Upgrade: h2c", "Accept: a", "Accept: b",
        "x-marker: twice",
    ]  # fmt: skip
    pair.ask(post("ok", b"{}", "/v1/systemone", *fields))
    (seen,) = pair.backend.of("x-marker: twice")
    assert seen.values("x-a") == ["1", "2"] and seen.values("accept") == ["a", "b"]
    assert seen.values("authorization") == ["Bearer a"] and seen.values("cookie") == ["a=1"]
    for name in ("connection", "x-hop", "te", "keep-alive", "proxy-authorization", "upgrade"):
        assert seen.values(name) == [], name


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate of `localhost` in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=DNS:localhost -keyout {folder}/key -out {folder}/cert"
    subprocess.run(command.split(), check=True, capture_output=True)
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return folder / "both"


def slow(exchange: Exchange) -> None:
    exchange.backend.released.wait(1.0)
    exchange.send(OK)


def ragged(exchange: Exchange) -> None:
    """Ends without saying so in TLS."""
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
    exchange.close()


def orderly(exchange: Exchange) -> None:
    ragged(exchange)
    assert isinstance(exchange.socket, ssl.SSLSocket)
    exchange.socket.unwrap()


@contextmanager
def over_tls(certificate: Path) -> Iterator[Scripted]:
    """The scripted backend behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def wrap(connection: socket.socket) -> socket.socket:
        return context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=True)

    with scripted({"slow": slow, "ragged": ragged, "orderly": orderly}, wrap) as backend:
        yield backend


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[Pair]:
    with over_tls(certificate) as backend:
        url = backend.url.replace("http://127.0.0.1", "https://localhost")
        with start_jevproxy(url, "--preload", SSL_CERT_FILE=str(certificate)) as proxy:
            yield Pair(proxy, backend)
            assert_quiet(proxy)


def test_an_https_backend_is_reached_and_its_connection_reused(secure: Pair) -> None:
    with secure.caller() as caller:
        assert caller.ask(post("ok", b"a" * 300_000)).status == 200
        opened = secure.backend.connections
        assert [caller.ask(post()).status for _ in range(10)] == [200] * 10
    assert secure.backend.connections <= opened + 1


def test_calls_to_an_https_backend_run_side_by_side(secure: Pair) -> None:
    callers = [secure.caller().send(post("slow")) for _ in range(20)]
    wait_until(lambda: len(secure.backend.of("x-script: slow")) == 20, 15, "all being there at once")
    for caller in callers:
        assert caller.reply().status == 200
        caller.close()


def test_tls_that_ends_without_saying_so_leaves_a_body_unfinished(secure: Pair) -> None:
    assert secure.ask(get("orderly")).body == b"{}"
    reply = secure.ask(get("ragged"))
    assert reply.status == 502 or not reply.whole


def test_a_certificate_that_does_not_verify_is_502(certificate: Path) -> None:
    with over_tls(certificate) as backend:
        for host, trusted in (("localhost", {}), ("127.0.0.1", {"SSL_CERT_FILE": str(certificate)})):
            url = backend.url.replace("http://127.0.0.1", f"https://{host}")
            with start_jevproxy(url, **trusted) as proxy, Caller(proxy.url) as caller:
                assert caller.ask(post()).status == 502
                assert b'jevproxy_failures_total{kind="tls"}' in caller.ask(get(path="/metrics")).body
        assert backend.seen == []


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_connection_settles_until_one_was_seen_to_live() -> None:
    limit = IdleLimit(4.0)
    assert limit.settles(0.0) == SETTLE and limit.settles(SETTLE) == 0.0
    limit.lives_after(SETTLE / 2)
    assert limit.settles(0.0) == SETTLE, "a shorter rest shows nothing"
    limit.lives_after(SETTLE)
    assert limit.settles(0.0) == 0.0
    limit.closed_after(0.001)
    assert not limit.allows(0.0), "after a close at once no connection is used again"
    assert limit.settles(0.0) == SETTLE


def test_the_idle_limit_goes_below_what_a_close_showed_and_comes_back() -> None:
    clock = Clock()
    limit = IdleLimit(4.0, clock)
    assert limit.allows(3.9) and not limit.allows(4.0)
    limit.closed_after(1.1)
    assert limit.allows(0.5) and not limit.allows(0.6)
    limit.closed_after(3.0)
    assert not limit.allows(0.6), "a later sight of a longer time teaches nothing"
    clock.now += RELEARN + 1
    assert limit.allows(3.9)


@pytest.mark.parametrize("target", ["/a\r\nX: 1", "/a\nb", "/a#b", "/\xe9"])
def test_no_target_writes_into_the_head(target: str) -> None:
    with pytest.raises(BadRequest):
        Outgoing("GET", target, [("Host", "h")], None).head()
    with pytest.raises(BadRequest):
        Outgoing("GET", "/", [("X-A", "1\r\nX-B: 2")], None).head()
