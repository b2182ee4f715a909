"""What the scripted backend of jevproxy's tests can do, by the name that a request gives in X-Script."""

from __future__ import annotations

import gzip
import threading

from tests.backends import OK, Exchange, Script, cuts, drips, holds, resets, says
from tests.messages import chunked, response

HEAD = b"HTTP/1.1 200 OK\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"
SSE = b"Content-Type: text/event-stream\r\n"
GZIPPED = gzip.compress(b'{"ok":1}', mtime=0)
BIG = b"z" * 2_000_000
OVER_A_MIB = [b"%07d " % number + b"j" * 65528 for number in range(17)]


def streams(exchange: Exchange) -> None:
    """An event stream that stays open: one event, then another every moment until the peer goes."""
    exchange.start()
    exchange.chunk(b"data: 0\n\n")
    while not exchange.left(unless=_after(0.05)):
        exchange.chunk(b"data: n\n\n")
    exchange.close()


def silent_stream(exchange: Exchange) -> None:
    """One event, then nothing until the peer goes."""
    exchange.start()
    exchange.chunk(b"data: 0\n\n")
    exchange.left(unless=exchange.backend.released)
    exchange.close()


def floods(exchange: Exchange) -> None:
    """64 MiB, until the peer goes."""
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
    for _ in range(1024):
        exchange.send(b"f" * 65536)


def breaks_off(exchange: Exchange) -> None:
    """Two events, then the end without a last chunk, once the test has read them."""
    exchange.start()
    exchange.chunk(b"data: 0\n\n")
    exchange.chunk(b"data: 1\n\n")
    exchange.backend.gates.setdefault(exchange.values("x-gate")[0], threading.Event()).wait(60)
    exchange.close()


def early_413(exchange: Exchange) -> None:
    """Refuses as soon as it has the head, then reads on for as long as the peer sends."""
    exchange.send(response(b'{"no":1}', JSON + b"Connection: close\r\n", b"413 Content Too Large"))
    exchange.left(unless=exchange.backend.released)
    exchange.close()


def early_interim(exchange: Exchange) -> None:
    """Says 100 and 103 while the body is still coming, then reads all of it and answers its length."""
    exchange.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    left = int(exchange.values("content-length")[0]) - len(exchange.body)
    while left > 0 and (data := exchange.socket.recv(1 << 16)):
        left -= len(data)
    if not left:
        exchange.send(response(b"all"))
    exchange.close()


def early_close(exchange: Exchange) -> None:
    """Ends the connection on seeing the head."""
    exchange.close()


def _after(seconds: float) -> threading.Event:
    event = threading.Event()
    timer = threading.Timer(seconds, event.set)
    timer.daemon = True
    timer.start()
    return event


def echo(exchange: Exchange) -> None:
    exchange.answer(exchange.body, "application/octet-stream")


SCRIPTS: dict[str, Script] = {
    "echo": echo,
    "hold": holds,
    "streams": streams,
    "silent_stream": silent_stream,
    "floods": floods,
    "breaks_off": breaks_off,
    "early_413": early_413,
    "early_interim": early_interim,
    "early_close": early_close,
    "drip_head": drips(HEAD + b"X-Long: " + b"a" * 500, 0.25),
    "drip_body": drips(response(b"a" * 500), 0.25),
    "drip_slow_json": drips(HEAD + TE + JSON + b"\r\n" + chunked(b"a" * 500), 0.25),
    "close": cuts(b""),
    "reset": resets(b""),
    "two_mb": cuts(response(BIG)),
    "until_close": cuts(HEAD + b"\r\n" + b"y" * 5000),
    "http10": cuts(b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n{}"),
    "json_chunks": says(HEAD + TE + JSON + b"\r\n" + chunked(b'{"a":', b"1}")),
    "json_over_a_mib": says(HEAD + TE + JSON + b"\r\n" + chunked(*OVER_A_MIB)),
    "json_over_a_mib_cut": cuts(HEAD + TE + JSON + b"\r\n" + chunked(*OVER_A_MIB, last=False)),
    "unannounced_close": cuts(OK),
    # Cut or misframed: what a client must never take for whole.
    "cut_length": cuts(HEAD + b"Content-Length: 100\r\n\r\n" + b"x" * 40),
    "cut_length_reset": resets(HEAD + b"Content-Length: 100\r\n\r\n" + b"x" * 40),
    "cut_chunks": cuts(HEAD + TE + JSON + b"\r\n" + chunked(b"hello", last=False)),
    "cut_in_chunk": cuts(HEAD + TE + JSON + b"\r\n5\r\nhel"),
    "cut_in_trailers": cuts(HEAD + TE + JSON + b"\r\n" + chunked(b"hello", last=False) + b"0\r\nX-T: 1\r\n"),
    "cut_head": cuts(HEAD + b"X-A"),
    "reset_until_close": resets(HEAD + JSON + b"\r\n" + b"y" * 5000),
    "cut_stream": cuts(HEAD + TE + SSE + b"\r\n" + chunked(b"data: 0\n\n", last=False)),
    "cut_big": cuts(HEAD + b"Content-Length: 3000000\r\n\r\n" + BIG),
    "cut_big_reset": resets(HEAD + b"Content-Length: 3000000\r\n\r\n" + BIG),
    "chunk_end": says(HEAD + TE + JSON + b"\r\n5\r\nhelloXX0\r\n\r\n"),
    "chunk_plus": says(HEAD + TE + JSON + b"\r\n+5\r\nhello\r\n0\r\n\r\n"),
    "chunk_0x": says(HEAD + TE + JSON + b"\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk_negative": says(HEAD + TE + JSON + b"\r\n-5\r\nhello\r\n0\r\n\r\n"),
    "chunk_no_size": says(HEAD + TE + JSON + b"\r\n\r\nhello\r\n0\r\n\r\n"),
    "chunk_bare_cr": says(HEAD + TE + JSON + b"\r\n5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "te_gzip": cuts(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(b"hello")),
    "te_twice": says(HEAD + TE + TE + b"\r\n" + chunked(b"hello")),
    "te_unknown": says(HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(b"hello")),
    "length_twice": says(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "length_list": says(HEAD + b"Content-Length: 5, 5\r\n\r\nhello"),
    "length_plus": says(HEAD + b"Content-Length: +5\r\n\r\nhello"),
    "length_negative": says(HEAD + b"Content-Length: -5\r\n\r\nhello"),
    "bare_cr_in_field": says(HEAD + b"X-A: a\rSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\nok"),
    "bare_cr_in_reason": says(b"HTTP/1.1 200 OK\rX-A: y\r\nContent-Length: 2\r\n\r\nok"),
    "nul_in_reason": says(b"HTTP/1.1 200 O\0K\r\nContent-Length: 2\r\n\r\nok"),
    "control_in_field": says(HEAD + b"X-A: a\x01b\r\nContent-Length: 2\r\n\r\nok"),
    "space_before_colon": says(HEAD + b"X-A : a\r\nContent-Length: 2\r\n\r\nok"),
    "no_colon": says(HEAD + b"nonsense\r\nContent-Length: 2\r\n\r\nok"),
    "folded_first": says(HEAD + b" X-A: 1\r\nContent-Length: 2\r\n\r\nok"),
    "switching": says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    "status_1000": says(b"HTTP/1.1 1000 Hm\r\nContent-Length: 2\r\n\r\nok"),
    "http2": cuts(b"HTTP/2 200\r\n\r\n"),
    "http09": cuts(b"<html>hello</html>"),
    "garbage": cuts(b"hello world\r\n\r\n"),
    "endless_head": cuts(HEAD + b"X-A: " + b"a" * 300_000 + b"\r\n\r\n"),
    # Well-formed, however odd.
    "length_and_chunks": says(HEAD + TE + b"Content-Length: 3\r\n\r\n" + chunked(b"hello")),
    "trailers": says(HEAD + TE + b"Trailer: X-T\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"),
    "interim": says(b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" + OK),
    "no_reason": says(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"),
    "folded": says(HEAD + b"X-A: a\r\n  b\r\nContent-Length: 2\r\n\r\nok"),
    "line_feeds": says(b"HTTP/1.1 200 OK\nX-A: 1\nContent-Length: 2\n\nok"),
    "latin": says(HEAD + b"X-A: caf\xe9\r\nContent-Length: 2\r\n\r\nok"),
    "fields": cuts(
        HEAD + b"Date: Mon, 30 Nov 2026 00:00:00 GMT\r\nServer: theirs\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"Connection: x-hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=4\r\nUpgrade: h2c\r\n"
        b"Proxy-Authenticate: Basic\r\nVary: a\r\nvary: b\r\nContent-Length: 2\r\n\r\nok"
    ),
    "gzip": says(response(GZIPPED, b"Content-Encoding: gzip\r\n" + JSON)),
    "gzip_500": says(response(GZIPPED, b"Content-Encoding: gzip\r\n" + JSON, b"500 Internal Server Error")),
    "gzip_chunks": says(HEAD + TE + JSON + b"Content-Encoding: gzip\r\n\r\n" + chunked(GZIPPED)),
    "gzip_untrue": says(response(b'{"plain":1}', b"Content-Encoding: gzip\r\n" + JSON)),
    "gzip_204": says(b"HTTP/1.1 204 No Content\r\nContent-Encoding: gzip\r\n\r\n"),
    "s204_body": says(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"),
    "s204_length_0": says(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
    "s304": says(b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 700\r\n\r\n'),
    "s304_body": says(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello"),
    "surplus": says(response(b"ok") + response(b"poison", b"X-Poison: 1\r\n")),
    "surplus_long": says(response(b"ok") + b"A" * 100_000 + response(b"poison", b"X-Poison: 1\r\n")),
    "surplus_chunks": says(HEAD + TE + b"\r\n" + chunked(b"ok") + response(b"poison", b"X-Poison: 1\r\n")),
    "cookie": says(response(b"ok", b"Set-Cookie: session=one; Path=/\r\n")),
    "teapot": says(response(b"short and stout", b"Content-Type: text/plain\r\n", b"418 I'm a teapot")),
    "theirs_500": says(response(b'{"detail":"theirs"}', JSON, b"500 Internal Server Error")),
    "theirs_503": says(response(b"busy", b"Retry-After: 7\r\n", b"503 Service Unavailable")),
}  # fmt: skip
for code in (301, 302, 303, 307, 308):
    for where in ("/v1/models", "http://elsewhere.test/x", "//evil.test/"):
        SCRIPTS[f"redirect {code} {where}"] = says(
            b"HTTP/1.1 %d Moved\r\nLocation: %b\r\nContent-Length: 4\r\n\r\nmove" % (code, where.encode())
        )
