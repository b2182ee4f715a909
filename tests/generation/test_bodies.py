"""Large answers and uploads pass through with flat memory, and nothing of them is kept here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.backends import Exchange, Scripted
from tests.callers import ask
from tests.generation.conftest import chat
from tests.messages import multipart, post
from tests.servers import Program, start_jevproxy

MIB = 1024 * 1024
LARGE = 64 * MIB


def peak_kib(program: Program) -> int:
    """The most memory that a process of the program has had resident, in KiB."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    lines = (Path(f"/proc/{pid}/status").read_text().splitlines() for pid in children)
    return max(int(line.split()[1]) for status in lines for line in status if line.startswith("VmHWM:"))


def piece(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest() * 2048


@pytest.mark.parametrize("media", ["audio/wav", "video/mp4", "application/json", "application/octet-stream"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "length"])
def test_a_large_answer_passes_with_flat_memory(
    backend: Scripted, proxy: Program, media: str, chunked: bool
) -> None:
    count = LARGE // len(piece(0))

    def play(exchange: Exchange) -> None:
        if chunked:
            exchange.start(media)
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nContent-Length: {LARGE}\r\n\r\n"
            exchange.send(head.encode())
        for number in range(count):
            (exchange.chunk if chunked else exchange.send)(piece(number))
        if chunked:
            exchange.end()

    before = peak_kib(proxy)
    with chat(proxy, backend.plays(play), "Connection: close") as client:
        client.head()
        body = client.rest()
    if not chunked:
        assert len(body) == LARGE and all(
            body[n * len(piece(0)) : (n + 1) * len(piece(0))] == piece(n) for n in range(count)
        )
    else:
        assert len(body) > LARGE and body.endswith(b"0\r\n\r\n")
    assert peak_kib(proxy) - before < LARGE // 1024 // 3


def test_an_upload_arrives_byte_for_byte_and_leaves_nothing_behind(backend: Scripted, tmp_path: Path) -> None:
    """Above a frontend's usual spooling size, with a hostile file name."""
    seen: list[bytes] = []

    def play(exchange: Exchange) -> None:
        seen.append(exchange.body)
        exchange.answer()

    body = multipart(b"../../x", b"".join(piece(number) for number in range(20 * MIB // len(piece(0)))))
    form = post(
        backend.plays(play), body, "/v1/images/edits", "Content-Type: multipart/form-data; boundary=----b"
    )
    with start_jevproxy(backend.url, OMNI_JEV_ROUTES="generation", TMPDIR=str(tmp_path)) as proxy:
        assert ask(proxy.url, form).status == 200
        assert seen == [body]
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {path.parent.name.rpartition("-")[0] for path in left} == {"jevproxy-metrics"}
