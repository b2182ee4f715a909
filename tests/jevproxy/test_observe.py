"""Metrics and the access log: every request once, and nothing that is nobody's business."""

from __future__ import annotations

import calendar
import io
import json
import time

import pytest

from jevproxy.observe import Observer, Record
from tests.jevproxy.conftest import Pair
from tests.messages import get, post


def test_a_log_line_is_json_with_these_keys(pair: Pair) -> None:
    assert (
        pair.ask(post("echo", b"hello", "/v1/systemone", "X-Request-Id: log-1")).value("x-request-id")
        == "log-1"
    )
    line = pair.logged("log-1")
    assert list(line) == ["time", "id", "method", "path", "status", "bytes", "backend_ms", "ms"]
    assert (line["method"], line["path"], line["status"], line["bytes"]) == ("POST", "/v1/systemone", 200, 5)
    assert 0 < line["backend_ms"] <= line["ms"]
    assert abs(calendar.timegm(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.time()) < 60


def test_secrets_bodies_and_queries_are_not_logged(hasty: Pair) -> None:
    fields = ["Authorization: Bearer se5ame", "Cookie: se5ame=1", "X-Request-Id: log-secret"]
    for script in ("echo", "garbage", "hold"):
        hasty.ask(
            post(
                script,
                b"the se5ame body",
                "/v1/systemone?key=se5ame",
                *fields[:2],
                f"X-Request-Id: log-{script}",
            )
        )
        hasty.logged(f"log-{script}")
    hasty.ask(b"GET http://user:se5ame@h/v1/models HTTP/1.1\r\nHost: h\r\nX-Request-Id: log-userinfo\r\n\r\n")
    hasty.logged("log-userinfo")
    hasty.ask(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization : Bearer se5ame\r\n\r\n")
    assert "se5ame" not in hasty.proxy.output()


@pytest.mark.parametrize(
    "path",
    ["/caf%C3%A9", "/a%22b%5Cc", "/a%0Ab", "/" + "a" * 5000, "/%00", "/%E2%80%A8", "/%F0%9F%98%80" * 100],
)
def test_any_path_makes_one_parsable_bounded_line(pair: Pair, path: str) -> None:
    marker = f"log-path-{abs(hash(path))}"
    assert pair.ask(get("ok", path, f"X-Request-Id: {marker}")).status == 404
    line = pair.logged(marker)
    assert (line["status"], line["failure"]) == (404, "not_found")
    assert len(line["path"]) <= 256


@pytest.mark.parametrize("unsafe", ["a b", 'a"b', "a\\b", "x" * 129, "", "caf\xe9", "a{b}"])
def test_an_unsafe_request_id_is_replaced(pair: Pair, unsafe: str) -> None:
    marker = f"x-marker: unsafe-id.{len(unsafe)}.{abs(hash(unsafe))}"
    reply = pair.ask(get("ok", "/v1/models", f"X-Request-Id: {unsafe}", marker))
    (given,) = reply.values("x-request-id")
    assert given != unsafe and len(given) == 32
    assert pair.backend.of(marker)[0].values("x-request-id") == [given]
    assert pair.logged(given)["status"] == 200


def test_a_refused_request_is_logged_and_counted(pair: Pair) -> None:
    before = pair.metric('jevproxy_failures_total{kind="refused"}')
    reply = pair.ask(b"GET /v1/models HTTP/1.1\r\nbad\r\n\r\n")
    line = pair.logged(str(reply.value("x-request-id")))
    assert (line["status"], line["failure"]) == (400, "refused")
    assert pair.metric('jevproxy_failures_total{kind="refused"}') == before + 1


def test_requests_are_counted_by_route_and_status_and_unknown_paths_add_no_series(pair: Pair) -> None:
    pair.ask(post("ok", b"{}", "/v1/systemone", "X-Request-Id: counted"))
    pair.logged("counted")
    for path in ("/nowhere/1", "/nowhere/2"):
        pair.ask(get("ok", path, f"X-Request-Id: counted-{path[-1]}"))
        pair.logged(f"counted-{path[-1]}")
    text = pair.ask(get(path="/metrics")).body.decode()
    assert "nowhere" not in text
    assert 'jevproxy_requests_total{route="other",status="404"}' in text
    assert 'jevproxy_exchange_seconds_bucket{le="+Inf",route="POST /v1/systemone"}' in text
    assert 'jevproxy_backend_seconds_count{route="POST /v1/systemone"}' in text


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("close", "closed"),
        ("garbage", "protocol"),
        ("cut_length", "cut"),
        ("cut_stream", "cut"),
        ("hold", "timeout"),
    ],
)
def test_backend_failures_are_counted_by_kind(pair: Pair, hasty: Pair, script: str, kind: str) -> None:
    pair = hasty if kind == "timeout" else pair
    before = pair.metric(f'jevproxy_failures_total{{kind="{kind}"}}')
    pair.ask(post(script, b"{}", "/v1/systemone", f"X-Request-Id: kind-{script}"))
    assert pair.logged(f"kind-{script}")["failure"] == kind
    assert pair.metric(f'jevproxy_failures_total{{kind="{kind}"}}') == before + 1


def test_a_record_becomes_one_line() -> None:
    log = io.StringIO()
    observer = Observer(log)
    record = Record(
        "GET", '/a"b\n', "id", time.perf_counter(), status=502, sent=7, kind="cut", asked=1.5, answered=1.75
    )
    observer.finish(record)
    assert log.getvalue().count("\n") == 1
    line = json.loads(log.getvalue())
    assert line["path"] == '/a"b\n' and line["backend_ms"] == 250.0 and line["failure"] == "cut"
    assert 'jevproxy_requests_total{route="other",status="502"} 1.0' in observer.metrics().decode()
