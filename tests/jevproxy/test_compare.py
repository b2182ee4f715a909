"""The comparison tool finds what differs, and only that."""

from __future__ import annotations

import socket

import pytest

from jevproxy.compare import Case, cases, compare, main
from tests.servers import raw_backend, read_request, start_jevproxy


def answering(body: bytes, status: bytes = b"200 OK"):  # type: ignore[no-untyped-def]
    """A backend that gives one answer to everything."""

    def answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (status, len(body), body)
        )

    return answer


def test_through_the_proxy_all_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    with raw_backend(answering(b'{"a":1}')) as backend, start_jevproxy(backend.url) as proxy:
        assert main(["--backend", backend.url, "--frontend", proxy.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(cases("m"))
    assert all(line.endswith(" equal") for line in lines)


@pytest.mark.parametrize(
    ("body", "status", "named"), [(b'{"a":2}', b"200 OK", "body"), (b'{"a":1}', b"201 Created", "status")]
)
def test_a_difference_is_named(body: bytes, status: bytes, named: str) -> None:
    with raw_backend(answering(b'{"a":1}')) as one, raw_backend(answering(body, status)) as other:
        ((_, difference),) = compare(one.url, other.url, [Case("x", "GET", "/x")])
        assert difference.startswith(named)
        assert main(["--backend", one.url, "--frontend", other.url]) == 1


def test_no_answer_is_a_difference() -> None:
    with raw_backend(answering(b"{}")) as one, raw_backend(lambda connection: None) as silent:
        ((_, difference),) = compare(one.url, silent.url, [Case("x", "GET", "/x")])
        assert difference.startswith("no answer")
