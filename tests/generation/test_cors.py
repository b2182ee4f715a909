"""Pages of other origins: none by default; preflights answered here; a wildcard never with credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.generation.stage import CHAT, Scene, Stage
from tests.parity.wire import Answer, ask, request
from tests.servers import Program, start_jevproxy

PAGE, LOCAL, OTHER = "https://app.example", "http://[::1]:3000", "https://app.example.evil.test"


@pytest.fixture(scope="module")
def named(backend: Stage) -> Iterator[Program]:
    with start_jevproxy(
        backend.backend.url, OMNI_JEV_ROUTES="generation", OMNI_JEV_CORS_ORIGINS=f"{PAGE}, {LOCAL}"
    ) as program:
        yield program


@pytest.fixture(scope="module")
def anyone(backend: Stage) -> Iterator[Program]:
    with start_jevproxy(
        backend.backend.url, OMNI_JEV_ROUTES="generation,GET /x/*", OMNI_JEV_CORS_ORIGINS=f"*,{PAGE}"
    ) as program:
        yield program


@pytest.fixture
def generous(backend: Stage) -> str:
    """A backend that lets any page read, as some do on their own."""

    def play(scene: Scene) -> None:
        fields = (
            b"Access-Control-Allow-Origin: *\r\naccess-control-allow-credentials: true\r\nVary: Accept\r\n"
        )
        scene.send(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n{}" % fields)

    return backend.plays(play)


def preflight(program: Program, origin: str, path: str = CHAT, method: str = "POST") -> Answer:
    fields = (
        f"Origin: {origin}",
        f"Access-Control-Request-Method: {method}",
        "Access-Control-Request-Headers: authorization,content-type",
    )
    encoded = [field.encode() for field in fields]
    return ask(program.port, request(f"OPTIONS {path}", b"", *encoded, type_=None, length=False))


def post(program: Program, origin: str | None, script: str, path: str = CHAT) -> Answer:
    fields = [f"X-Script: {script}"] + ([f"Origin: {origin}"] if origin else [])
    return ask(program.port, request(f"POST {path}", b"{}", *(field.encode() for field in fields)))


def all_of(answer: Answer, name: str) -> list[str]:
    return [value for field, value in answer.fields if field == name]


def test_by_default_the_backends_word_counts(proxy: Program, generous: str) -> None:
    assert preflight(proxy, PAGE).code == 405
    answer = post(proxy, PAGE, generous)
    assert all_of(answer, "access-control-allow-origin") == ["*"]
    assert all_of(answer, "access-control-allow-credentials") == ["true"]


@pytest.mark.parametrize("origin", [PAGE, LOCAL])
def test_a_named_origin_may_read(named: Program, generous: str, origin: str) -> None:
    asked = preflight(named, origin)
    assert asked.code == 204 and asked.body == b""
    assert all_of(asked, "access-control-allow-origin") == [origin]
    assert all_of(asked, "access-control-allow-headers") == ["authorization, content-type"]
    assert "POST" in all_of(asked, "access-control-allow-methods")[0]
    answer = post(named, origin, generous)
    assert all_of(answer, "access-control-allow-origin") == [origin], "the backend's own field is gone"
    assert all_of(answer, "access-control-allow-credentials") == ["true"]
    assert all_of(answer, "vary") == ["Accept", "Origin"]


@pytest.mark.parametrize("origin", [OTHER, "null", "http://app.example", PAGE + ":8443", None])
def test_another_origin_may_not(named: Program, generous: str, origin: str | None) -> None:
    answer = post(named, origin, generous)
    assert answer.code == 200 and "Origin" in all_of(answer, "vary")
    assert not [name for name, _ in answer.fields if name.startswith("access-control-")]
    if origin:
        assert not all_of(preflight(named, origin), "access-control-allow-origin")


def test_a_wildcard_goes_without_credentials(anyone: Program, generous: str) -> None:
    for answer in (preflight(anyone, OTHER), post(anyone, PAGE, generous), preflight(anyone, PAGE, "/x/a/b")):
        assert all_of(answer, "access-control-allow-origin") == ["*"]
        assert not all_of(answer, "access-control-allow-credentials")


def test_a_page_may_read_our_errors_but_not_the_metrics(named: Program, anyone: Program) -> None:
    unknown = ask(named.port, request("POST /nothing", b"{}", f"Origin: {PAGE}".encode()))
    assert unknown.code == 404 and all_of(unknown, "access-control-allow-origin") == [PAGE]
    raw = request("GET /metrics", b"", f"Origin: {PAGE}".encode(), type_=None, length=False)
    metrics = ask(anyone.port, raw)
    assert metrics.code == 200 and not all_of(metrics, "access-control-allow-origin")
    assert preflight(anyone, PAGE, "/metrics", "GET").code == 405
