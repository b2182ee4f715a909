"""The shipped nginx files: nginx accepts them, their limits are ours, and nginx's own answers are JSON."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import jevproxy.gunicorn_conf
import jevproxy.gunicorn_seam
import worker.gunicorn_conf
from jevproxy.settings import from_environ
from tests.backends import Exchange, Scripted, scripted
from tests.callers import Caller
from tests.client import Client
from tests.deploy import sites
from tests.messages import response
from tests.servers import Program, free_port, nginx_path, start_nginx

SHIPPED = {path.name: path.read_text() for path in sites.NGINX.glob("*.conf")}


def seconds(directive: str, text: str) -> list[int]:
    return [int(value) for value in re.findall(rf"\b{directive} (\d+)s;", text)]


def upstream_of(text: str) -> str:
    found = re.search(r"^upstream .*?^}", text, re.M | re.S)
    assert found
    return found[0]


def test_nginx_accepts_both_sites_together(tmp_path: Path) -> None:
    text = sites.configuration(
        tmp_path, sites.public_site(tmp_path, free_port(), [1]), sites.inner_site(2, [3, 4, 5])
    )
    (tmp_path / "nginx.conf").write_text(text)
    command = [nginx_path(), "-t", "-p", f"{tmp_path}/", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr


def test_limits_are_ours() -> None:
    settings = from_environ({})
    for name in ("jevproxy.conf", "jevworkers.conf"):
        text = SHIPPED[name]
        sizes = [int(size) << 20 for size in re.findall(r"client_max_body_size (\d+)m;", text)]
        assert sizes == [settings.max_body]
        assert min(seconds("proxy_read_timeout", text)) > max(settings.timeout, settings.stream_idle)
        assert "proxy_request_buffering off;" in text and "proxy_buffering off;" in text
        assert "non_idempotent" not in text


def test_nginx_lets_a_connection_go_before_its_server_does() -> None:
    proxy, inner = upstream_of(SHIPPED["jevproxy.conf"]), upstream_of(SHIPPED["jevworkers.conf"])
    assert "keepalive_timeout 500ms;" in proxy
    assert 0.5 < jevproxy.gunicorn_seam.IDLE_GRACE < jevproxy.gunicorn_conf.keepalive
    assert max(seconds("keepalive_timeout", inner)) < worker.gunicorn_conf.keepalive
    assert "keepalive_timeout 0;" in SHIPPED["jevworkers.conf"].replace(inner, "")


def echo(exchange: Exchange) -> None:
    """Answers every request with its own head as the body, X-Accel fields included."""
    (id,) = exchange.values("x-request-id") or ["none"]
    fields = (
        f"Content-Type: text/plain\r\nX-Accel-Redirect: /metrics\r\nServer: ours\r\nX-Request-ID: {id}\r\n"
    )
    exchange.send(response(exchange.head, fields.encode()))


@pytest.fixture(scope="module")
def backend() -> Iterator[Scripted]:
    with scripted(echo) as running:
        yield running


@pytest.fixture(scope="module")
def site(backend: Scripted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("site")
    port, closed = free_port(), free_port()
    public = sites.public_site(folder, port, [backend.port])
    # The same site with no server behind it, on a name of its own.
    dead = (
        public.replace("jev.example", "dead.example")
        .replace("jevproxy {", "dead {")
        .replace("//jevproxy", "//dead")
    )
    dead = re.sub(r"server 127\.0\.0\.1:\d+ max", f"server 127.0.0.1:{closed} max", dead)
    dead = re.sub(r"^limit_req_zone.*\n", "", dead, flags=re.M)
    # A limit that a few requests reach.
    tight = public.replace("jev.example", "tight.example").replace("jevproxy {", "tight {")
    tight = (
        tight.replace("burst=200", "burst=2")
        .replace("zone=jev_address", "zone=tight")
        .replace("rate=100r/s", "rate=1r/s")
    )
    with start_nginx(
        folder, sites.configuration(folder, public, dead, tight), f"https://127.0.0.1:{port}"
    ) as program:
        yield program


def ask(
    site: Program, method: str, path: str, body: bytes | None = None, host: str = "jev.example", **fields: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """`fields` by their names as they are, underscores too."""
    with Client(site.url) as client:
        return client.send(method, path, body, {"Host": host} | fields)


def assert_json(status: int, fields: http.client.HTTPMessage, body: bytes, error_type: str) -> None:
    assert fields["Content-Type"] == "application/json"
    detail = json.loads(body)["detail"]
    assert (
        detail["error_type"] == error_type
        and detail["message"]
        and detail["request_id"] == fields["X-Request-ID"]
    )


def test_a_request_crosses_as_it_is(site: Program) -> None:
    status, fields, head = ask(site, "GET", "//a/../b%2fc?x=%20y", under_score="2")
    assert status == 200 and fields["Server"] == "ours"
    assert head.startswith(b"GET //a/../b%2fc?x=%20y HTTP/1.1\r\n")
    assert b"\r\nHost: jev.example\r\n" in head and b"\r\nunder_score: 2\r\n" in head
    assert re.search(rb"\r\nX-Request-ID: [0-9a-f]{32}\r\n", head)


def test_the_clients_request_id_crosses(site: Program) -> None:
    status, fields, _ = ask(site, "GET", "/health", **{"X-Request-ID": "mine-1"})
    assert status == 200 and fields["X-Request-ID"] == "mine-1"


def test_metrics_are_not_public(site: Program) -> None:
    assert ask(site, "GET", "/metrics")[0] == 404
    assert_json(*ask(site, "GET", "/metrics"), "not_found")


def test_a_body_over_the_limit(site: Program) -> None:
    with Client(site.url) as client:
        client.connection.putrequest("POST", "/v1/systemone")
        client.connection.putheader("Content-Length", str((128 << 20) + 1))
        client.connection.endheaders()
        answer = client.answer()
        assert answer[0] == 413
        assert_json(*answer, "request_too_large")


def test_no_server_behind(site: Program) -> None:
    answer = ask(site, "POST", "/v1/systemone", b"{}", host="dead.example")
    assert answer[0] == 502
    assert_json(*answer, "bad_gateway")


def test_too_many_requests(site: Program) -> None:
    answers = [ask(site, "GET", "/health", host="tight.example") for _ in range(40)]
    refused = [answer for answer in answers if answer[0] == 429]
    assert refused and {answer[0] for answer in answers} == {200, 429}
    for answer in refused:
        assert answer[1]["Retry-After"] == "1"
        assert_json(*answer, "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20000 + b"\r\n\r\n", 400),
        (b"GET /" + b"y" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=["length", "large field", "long line", "TRACE", "no request"],
)
def test_what_nginx_refuses_is_json(site: Program, sent: bytes, status: int) -> None:
    with Caller(site.url) as caller:
        reply = caller.send(sent).reply()
    assert (reply.status, reply.value("content-type")) == (status, "application/json")
    assert reply.whole and reply.error_type
