"""Pages of other origins: none by default; preflights answered here; a wildcard never with credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import Scripted, says
from tests.callers import ask
from tests.generation.conftest import CHAT
from tests.messages import Reply, request, response
from tests.servers import Program, start_jevproxy

PAGE, LOCAL, OTHER = "https://app.example", "http://[::1]:3000", "https://app.example.evil.test"


@pytest.fixture(scope="module")
def named(backend: Scripted) -> Iterator[Program]:
    with start_jevproxy(
        backend.url, OMNI_JEV_ROUTES="generation", OMNI_JEV_CORS_ORIGINS=f"{PAGE}, {LOCAL}"
    ) as program:
        yield program


@pytest.fixture(scope="module")
def anyone(backend: Scripted) -> Iterator[Program]:
    with start_jevproxy(
        backend.url, OMNI_JEV_ROUTES="generation,GET /x/*", OMNI_JEV_CORS_ORIGINS=f"*,{PAGE}"
    ) as program:
        yield program


@pytest.fixture
def generous(backend: Scripted) -> str:
    """A backend that lets any page read, as some do on their own."""

    fields = b"Access-Control-Allow-Origin: *\r\naccess-control-allow-credentials: true\r\nVary: Accept\r\n"
    return backend.plays(says(response(b"{}", fields)))


def preflight(program: Program, origin: str, path: str = CHAT, method: str = "POST") -> Reply:
    fields = (
        f"Origin: {origin}",
        f"Access-Control-Request-Method: {method}",
        "Access-Control-Request-Headers: authorization,content-type",
    )
    encoded = [field.encode() for field in fields]
    return ask(program.url, request(f"OPTIONS {path}", b"", *encoded, type_=None, length=False))


def post(program: Program, origin: str | None, script: str, path: str = CHAT) -> Reply:
    fields = [f"X-Script: {script}"] + ([f"Origin: {origin}"] if origin else [])
    return ask(program.url, request(f"POST {path}", b"{}", *(field.encode() for field in fields)))


def test_by_default_the_backends_word_counts(proxy: Program, generous: str) -> None:
    assert preflight(proxy, PAGE).status == 405
    answer = post(proxy, PAGE, generous)
    assert answer.values("access-control-allow-origin") == ["*"]
    assert answer.values("access-control-allow-credentials") == ["true"]


@pytest.mark.parametrize("origin", [PAGE, LOCAL])
def test_a_named_origin_may_read(named: Program, generous: str, origin: str) -> None:
    asked = preflight(named, origin)
    assert asked.status == 204 and asked.body == b""
    assert asked.values("access-control-allow-origin") == [origin]
    assert asked.values("access-control-allow-headers") == ["authorization, content-type"]
    assert "POST" in asked.values("access-control-allow-methods")[0]
    answer = post(named, origin, generous)
    assert answer.values("access-control-allow-origin") == [origin], "the backend's own field is gone"
    assert answer.values("access-control-allow-credentials") == ["true"]
    assert answer.values("vary") == ["Accept", "Origin"]


@pytest.mark.parametrize("origin", [OTHER, "null", "http://app.example", PAGE + ":8443", None])
def test_another_origin_may_not(named: Program, generous: str, origin: str | None) -> None:
    answer = post(named, origin, generous)
    assert answer.status == 200 and "Origin" in answer.values("vary")
    assert not [name for name, _ in answer.fields if name.lower().startswith("access-control-")]
    if origin:
        assert not preflight(named, origin).values("access-control-allow-origin")


def test_a_wildcard_goes_without_credentials(anyone: Program, generous: str) -> None:
    for answer in (preflight(anyone, OTHER), post(anyone, PAGE, generous), preflight(anyone, PAGE, "/x/a/b")):
        assert answer.values("access-control-allow-origin") == ["*"]
        assert not answer.values("access-control-allow-credentials")


def test_a_page_may_read_our_errors_but_not_the_metrics(named: Program, anyone: Program) -> None:
    unknown = ask(named.url, request("POST /nothing", b"{}", f"Origin: {PAGE}".encode()))
    assert unknown.status == 404 and unknown.values("access-control-allow-origin") == [PAGE]
    raw = request("GET /metrics", b"", f"Origin: {PAGE}".encode(), type_=None, length=False)
    metrics = ask(anyone.url, raw)
    assert metrics.status == 200 and not metrics.values("access-control-allow-origin")
    assert preflight(anyone, PAGE, "/metrics", "GET").status == 405
