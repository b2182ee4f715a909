"""The comparison tool finds what differs, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import responses

from jevproxy.compare import Case, cases, compare, main
from tests.backends import Script, cuts, scripted
from tests.messages import response
from tests.servers import start_jevproxy


def answering(body: bytes, status: bytes = b"200 OK") -> Script:
    """One answer to everything."""
    return cuts(response(body, b"Content-Type: application/json\r\nConnection: close\r\n", status))


def test_through_the_proxy_all_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(answering(b'{"a":1}')) as backend, start_jevproxy(backend.url) as proxy:
        assert main(["--backend", backend.url, "--frontend", proxy.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(cases("m"))
    assert all(line.endswith(" equal") for line in lines)


BACKEND, FRONTEND = "http://backend.test:8000", "https://frontend.test/base"
PATHS = {(case.method, case.path) for case in cases("m")}


@pytest.fixture
def answers() -> Iterator[responses.RequestsMock]:
    """What both deployments say, at the level of URLs; nothing else can be reached."""
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        for method, path in PATHS:
            for root in (BACKEND, FRONTEND):
                mock.add(method, root + path, b'{"a":1}', content_type="application/json")
        yield mock


def test_equal_answers_show_no_difference_and_both_are_asked_the_same(
    answers: responses.RequestsMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://nobody.test:1")
    monkeypatch.setenv("HTTP_PROXY", "http://nobody.test:1")
    assert [difference for _, difference in compare(BACKEND, FRONTEND + "/", cases("m"), "k")] == [""] * 9
    asked = [call.request for call in answers.calls]
    for direct, proxied in zip(asked[::2], asked[1::2], strict=True):
        assert (direct.method, direct.body) == (proxied.method, proxied.body)
        assert str(direct.url).removeprefix(BACKEND) == str(proxied.url).removeprefix(FRONTEND)
        assert direct.headers == proxied.headers and direct.headers["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ({"body": b'{"a":2}'}, "body b'{\"a\":1}' became b'{\"a\":2}'"),
        ({"body": b'{"a":1}', "status": 201}, "status 200 became 201"),
        ({"body": b'{"a":1}', "content_type": "text/plain"}, "content_type 'application/json' became 'text/plain'"),
        ({"body": b"", "status": 302, "headers": {"Location": BACKEND + "/v1/models"}}, "status 200 became 302"),
        ({"body": requests.ConnectionError("refused")}, "no answer: refused"),
        ({"body": requests.Timeout("late")}, "no answer: late"),
    ],
)  # fmt: skip
def test_a_difference_is_named(
    answers: responses.RequestsMock, answer: dict[str, Any], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.replace("GET", FRONTEND + "/v1/models", **({"content_type": "application/json"} | answer))
    results = {case.name: difference for case, difference in compare(BACKEND, FRONTEND, cases("m"))}
    assert results.pop("models").startswith(named)
    assert set(results.values()) == {""}
    assert main(["--backend", BACKEND, "--frontend", FRONTEND]) == 1
    assert f"models         {named}" in capsys.readouterr().out


def test_a_connection_that_is_closed_without_a_word_is_a_difference() -> None:
    with scripted(answering(b"{}")) as one, scripted(lambda exchange: exchange.close()) as silent:
        ((_, difference),) = compare(one.url, silent.url, [Case("x", "GET", "/x")])
        assert difference.startswith("no answer")
