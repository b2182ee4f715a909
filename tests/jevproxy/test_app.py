"""What is answered here: unknown paths and methods, health, metrics, and errors of our own."""

from __future__ import annotations

import pytest

from tests.jevproxy.conftest import Pair
from tests.messages import get, post


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/systemone/x", "/v1//systemone", "/v1/../v1/models", "/HEALTH", "/%2e%2e/health"]
)
def test_an_unknown_path_is_404_and_never_reaches_the_backend(pair: Pair, path: str) -> None:
    before = len(pair.backend.seen)
    for request in (get(path=path), post(path=path)):
        reply = pair.ask(request)
        assert (reply.status, reply.error_type) == (404, "not_found")
    assert len(pair.backend.seen) == before


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/systemone", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("PUT", "/metrics", {"GET", "HEAD"}),
        ("TRACE", "/v1/systemone", {"POST"}),
        ("BREW", "/v1/systemone", {"POST"}),
    ],
)
def test_a_wrong_method_is_405_and_says_which_are_right(
    pair: Pair, method: str, path: str, allowed: set[str]
) -> None:
    reply = pair.ask(get(path=path).replace(b"GET", method.encode()))
    assert (reply.status, reply.error_type) == (405, "method_not_allowed")
    assert set(str(reply.value("allow")).split(", ")) == allowed


def test_an_error_of_our_own_is_json_with_the_request_id_and_a_date(pair: Pair) -> None:
    reply = pair.ask(get("garbage", "/v1/models", "X-Request-Id: mine"))
    detail = reply.json()["detail"]
    assert detail == {"error_type": "bad_gateway", "message": detail["message"], "request_id": "mine"}  # type: ignore[index]
    assert reply.values("x-request-id") == ["mine"] and reply.values("content-type") == ["application/json"]
    assert len(reply.values("date")) == 1
    assert "127.0.0.1" not in reply.body.decode()


@pytest.mark.parametrize("script", ["ok", "theirs_503", "gzip"])
def test_health_is_the_backends(pair: Pair, script: str) -> None:
    reply, theirs = pair.ask(get(script, "/health")), pair.ask(get(script))
    assert (reply.status, reply.body) == (theirs.status, theirs.body)


def test_metrics_are_answered_here(pair: Pair) -> None:
    before = len(pair.backend.seen)
    reply = pair.ask(get(path="/metrics"))
    assert str(reply.value("content-type")).startswith("text/plain; version=0.0.4")
    assert pair.ask(get(path="/metrics").replace(b"GET", b"HEAD")).body == b""
    assert len(pair.backend.seen) == before


@pytest.mark.parametrize("host", [b"a b<>", b"[::1", b"", b"\xe9:x", b"evil.test:99999", b"a" * 5000])
def test_any_host_field_is_served_and_none_is_passed_on(pair: Pair, host: bytes) -> None:
    request = b"GET /v1/models HTTP/1.1\r\nHost: " + host + b"\r\nx-marker: host.%d\r\n\r\n" % len(host)
    assert pair.ask(request).status == 200
    (seen,) = pair.backend.of(f"x-marker: host.{len(host)}")[:1]
    assert seen.values("host") == [pair.backend.url.removeprefix("http://")]


def test_a_server_name_as_a_field_changes_no_path(pair: Pair) -> None:
    fields = ["Script_Name: /v1", "Script-Name: /v1", "Path_Info: /metrics", "X_Forwarded_Prefix: /x"]
    assert pair.ask(get("echo", "/v1/models", *fields)).status == 200


def test_an_offer_of_another_protocol_is_declined(pair: Pair) -> None:
    for protocol in ("h2c", "websocket"):
        reply = pair.ask(get("ok", "/v1/models", "Connection: Upgrade", f"Upgrade: {protocol}"))
        assert (reply.status, reply.body) == (200, b"{}")


def test_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    with pair.caller() as caller:
        bodies = [b"%d" % number for number in range(20)]
        caller.send(b"".join(post("echo", body) for body in bodies))
        assert [caller.reply("POST").body for _ in bodies] == bodies
