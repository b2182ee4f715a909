"""Slots, deadlines, and clients that leave: every exchange ends once and frees what it held."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.jevproxy.conftest import Pair
from tests.jevproxy.test_response import BAD_GATEWAY
from tests.messages import get, post
from tests.servers import start_jevproxy, wait_until


@pytest.mark.parametrize("script", ["hold", "drip_head", "drip_body", "drip_slow_json"])
@pytest.mark.parametrize("make", [get, post], ids=["get", "post"])
def test_the_deadline_is_for_the_whole_exchange_and_its_connection_is_not_used_again(
    hasty: Pair, script: str, make: Callable[..., bytes]
) -> None:
    with hasty.caller() as caller:
        began = time.monotonic()
        marker = f"x-marker: deadline.{script}.{make.__name__}"
        request = make(script).replace(b"\r\n\r\n", f"\r\n{marker}\r\n\r\n".encode(), 1)
        reply = caller.ask(request)
        assert (reply.status, reply.error_type) == (504, "gateway_timeout")
        assert time.monotonic() - began >= 1.4
        missed = hasty.backend.of(marker)[0]
        assert caller.ask(get("ok", "/v1/models", f"x-marker: after.{script}.{make.__name__}")).status == 200
        after = hasty.backend.of(f"after.{script}.{make.__name__}")[0]
        assert after.number != missed.number
        assert missed.ended.wait(30)
    hasty.becomes_idle()


def test_health_has_its_own_shorter_deadline(patient: Pair) -> None:
    reply = patient.ask(get("hold", "/health", "X-Request-Id: health-deadline"))
    assert (reply.status, reply.error_type) == (504, "gateway_timeout")
    line = patient.logged("health-deadline")
    assert line["failure"] == "timeout"
    assert 1900 < line["backend_ms"] < 30000, "2 s, where an exchange has 60"


def test_the_deadline_reaches_a_connection_attempt() -> None:
    """A listener whose queue is full lets a connection wait; `localhost` gives a second address to try after it."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    try:
        address = full.getsockname()
        for _ in range(8):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            waiting.append(one)
        url, deadline = f"http://localhost:{address[1]}", {"OMNI_JEV_TIMEOUT": "1"}
        with start_jevproxy(url, **deadline) as proxy, Caller(proxy.url) as caller:
            assert caller.ask(get()).status == 504
            assert b'kind="connect"' not in caller.ask(get(path="/metrics")).body
    finally:
        for one in [*waiting, full]:
            one.close()


def fill(pair: Pair, callers: list[Caller], count: int, script: str = "hold") -> None:
    before = len(pair.backend.of("x-marker: filler"))
    for _ in range(count):
        caller = pair.caller()
        callers.append(caller)
        caller.send(post(script, b"{}", "/v1/systemone", "x-marker: filler"))
    wait_until(
        lambda: len(pair.backend.of("x-marker: filler")) == before + count, what="the slots being taken"
    )


def leave_all(callers: list[Caller]) -> None:
    for caller in callers:
        caller.close()
    callers.clear()


def test_over_the_limit_is_503_at_once_while_health_metrics_and_models_answer(patient: Pair) -> None:
    callers: list[Caller] = []
    fill(patient, callers, 3)
    try:
        with patient.caller() as caller:
            for _ in range(3):
                reply = caller.ask(post())
                assert (reply.status, reply.error_type, reply.value("retry-after")) == (
                    503,
                    "overloaded",
                    "1",
                )
            assert caller.ask(get(path="/health")).status == 200
            assert caller.ask(get()).status == 200
            assert patient.metric("jevproxy_in_flight") == 3
            assert patient.metric('jevproxy_failures_total{kind="shed"}') >= 3
    finally:
        leave_all(callers)
    patient.becomes_idle()


def test_a_stream_holds_its_slot_to_its_end(patient: Pair) -> None:
    callers: list[Caller] = []
    fill(patient, callers, 3, "silent_stream")
    try:
        for caller in callers:
            assert caller.head().status == 200
            caller.until(b"data: 0")
        assert patient.ask(post()).status == 503
    finally:
        leave_all(callers)
    patient.becomes_idle()


def test_a_client_that_sends_no_body_holds_no_slot(patient: Pair) -> None:
    callers = [patient.caller() for _ in range(6)]
    try:
        for caller in callers:
            caller.send(post(body=b"x" * 10)[:-10])
        assert patient.ask(post()).status == 200
    finally:
        leave_all(callers)


@pytest.mark.parametrize(
    "fail",
    [
        "hold", "streams", "silent_stream", "floods", "cut_length", "close", "reset", "cut_stream", "cut_big",
        "garbage", "theirs_500", "theirs_503", "teapot", "s304", "nul_in_reason", "early_413", "early_close",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["close", "reset"])
def test_every_way_to_end_gives_the_slot_back(patient: Pair, fail: str, how: str) -> None:
    """More often than there are slots, so that one that leaks shows."""
    for _ in range(4):
        caller = patient.caller()
        caller.send(post(fail, b"{}" * 1000, "/v1/systemone", f"x-marker: ends.{fail}.{how}"))
        seen = patient.backend.await_request(f"x-marker: ends.{fail}.{how}")
        if fail not in ("hold",):
            caller.head()
        caller.reset() if how == "reset" else caller.close()
        wait_until(lambda: patient.metric("jevproxy_in_flight") == 0, what="the slot being free")
        assert seen.ended.wait(30)


def test_all_kinds_of_bad_answers_leave_no_slot_taken(patient: Pair) -> None:
    for script in BAD_GATEWAY:
        assert patient.ask(post(script)).status == 502
    assert patient.metric("jevproxy_in_flight") == 0
    assert [patient.ask(post()).status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize(
    ("script", "how"),
    [
        *(
            (script, how)
            for script in ("hold", "streams", "silent_stream")
            for how in ("close", "reset", "half-close")
        ),
        ("floods", "close"),
        ("floods", "reset"),
    ],
)
def test_a_client_that_leaves_ends_the_backends_work_at_once(patient: Pair, script: str, how: str) -> None:
    """Its deadline is a minute away."""
    marker = f"x-marker: leaves.{script}.{how}"
    caller = patient.caller()
    caller.send(post(script, b"{}", "/v1/systemone", marker))
    seen = patient.backend.await_request(marker)
    if script != "hold":
        caller.until(b"\r\n\r\n")
    if how == "half-close":
        caller.half_close()
    else:
        caller.reset() if how == "reset" else caller.close()
    assert seen.ended.wait(20)
    if how == "half-close" and script == "hold":
        assert caller.rest() == b"", "499 is for the log"
    caller.close()
    patient.becomes_idle()


def test_a_client_that_stops_reading_is_bounded_by_the_deadline(hasty: Pair) -> None:
    marker = "x-marker: stops-reading"
    with hasty.caller() as caller:
        caller.send(post("floods", b"{}", "/v1/systemone", marker, "X-Request-Id: stops-reading"))
        seen = hasty.backend.await_request(marker)
        assert seen.ended.wait(30)
        assert hasty.logged("stops-reading")["failure"] == "timeout"
        assert not caller.rest().endswith(b"f" * (64 << 20))
    hasty.becomes_idle()


def test_two_hundred_seconds_of_work_take_about_one(backend_of_seconds: Pair) -> None:
    """Half of the sum would show a queue; the second wave opens no connection."""
    opened: list[int] = []
    for wave in range(2):
        callers = [backend_of_seconds.caller() for _ in range(200)]
        began = time.monotonic()
        for caller in callers:
            caller.send(post("second"))
        assert [caller.reply().status for caller in callers] == [200] * 200
        assert time.monotonic() - began < 40, wave
        leave_all(callers)
        opened.append(backend_of_seconds.backend.connections)
    assert opened[0] == opened[1] <= 200
