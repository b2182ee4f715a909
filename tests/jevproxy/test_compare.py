"""The comparison tool finds what differs, and only that."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("body", "status", "named"), [(b'{"a":2}', b"200 OK", "body"), (b'{"a":1}', b"201 Created", "status")]
)
def test_a_difference_is_named(body: bytes, status: bytes, named: str) -> None:
    with scripted(answering(b'{"a":1}')) as one, scripted(answering(body, status)) as other:
        ((_, difference),) = compare(one.url, other.url, [Case("x", "GET", "/x")])
        assert difference.startswith(named)
        assert main(["--backend", one.url, "--frontend", other.url]) == 1


def test_no_answer_is_a_difference() -> None:
    with scripted(answering(b"{}")) as one, scripted(lambda exchange: exchange.close()) as silent:
        ((_, difference),) = compare(one.url, silent.url, [Case("x", "GET", "/x")])
        assert difference.startswith("no answer")
