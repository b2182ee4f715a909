"""The corpus: malformed and odd requests, each sent as these bytes to a backend and to jevproxy before it.

`differences` tells which of them are answered otherwise, and how.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

from tests.messages import chunked, multipart, request
from tests.parity.lenient import ANSWERS

ROUTES = (
    "decisions,generation,GET /x/*,POST /x/*,PUT /x/*,DELETE /x/*,PATCH /x/*,POST /answer/*,GET /answer/*"
)

BASE = {
    "model": "jev-latest",
    "state": "Parcel 7731 arrived crushed, the buyer wants money back.",
    "questions": {"q": {"type": "noul", "instructions": "Does the buyer ask for a refund?"}},
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": False}


@dataclass(frozen=True)
class Case:
    """`raw` is what goes on the wire."""

    name: str
    raw: bytes


def dumped(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _bodies() -> list[Case]:
    """JSON that is odd or wrong: the backend's to judge."""
    chat, base = "POST /v1/chat/completions", dumped(BASE)
    odd: dict[str, tuple[str, bytes]] = {
        "base": ("POST /v1/systemone", base),
        "empty body": ("POST /v1/systemone", b""),
        "not JSON": ("POST /v1/systemone", b"hello"),
        "half of the JSON": ("POST /v1/systemone", base[: len(base) // 2]),
        "a byte-order mark": ("POST /v1/systemone", b"\xef\xbb\xbf" + base),
        "UTF-16": ("POST /v1/systemone", json.dumps(BASE).encode("utf-16")),
        "GBK": ("POST /v1/systemone", dumped(BASE).replace(b"Parcel", "包裹".encode("gbk"))),
        "NUL bytes": ("POST /v1/systemone", b"\0\0\0"),
        "all bytes": ("POST /generate", bytes(range(256)) * 3),
        "NaN and Infinity": ("POST /v1/systemone", b'{"state": NaN, "model": Infinity}'),
        "duplicate keys": ("POST /v1/systemone", b'{"model":"a","model":"b"}'),
        "nested 5000 deep": ("POST /v1/systemone", b"[" * 5000 + b"]" * 5000),
        "a 400-digit number": ("POST /v1/systemone", b'{"state": ' + b"9" * 400 + b"}"),
        "a lone surrogate": ("POST /v1/systemone", b'{"state": "\\ud800"}'),
        "a state of 300 KB": ("POST /v1/systemone", dumped({**BASE, "state": "x" * 300_000})),
        "a state of 3 MB": ("POST /v1/systemone", dumped({**BASE, "state": "y" * 3_000_000})),
        "questions as a list": ("POST /v1/systemone", dumped({**BASE, "questions": []})),
        "questions as a string": ("POST /v1/systemone", dumped({**BASE, "questions": "q"})),
        "an unknown question type": ("POST /v1/systemone", dumped({**BASE, "questions": {"q": {"type": "box"}}})),
        "state null": ("POST /v1/systemone", dumped({**BASE, "state": None})),
        "ids of emoji and CJK": ("POST /v1/systemone", dumped({**BASE, "questions": {"🦊 質問.1": {"type": "noul"}}})),
        "assets": ("POST /v1/systemone", dumped({**BASE, "assets": [{"url": "file:///etc/passwd"}]})),
        "chat": (chat, dumped(CHAT)),
        "a missing role": (chat, dumped({**CHAT, "messages": [{"content": "hello"}]})),
        "a role that is a number": (chat, dumped({**CHAT, "messages": [{"role": 7, "content": "hello"}]})),
        "messages as a string": (chat, dumped({**CHAT, "messages": "hello"})),
        "no messages": (chat, dumped({**CHAT, "messages": []})),
        "content in parts": (chat, dumped({**CHAT, "messages": [{"role": "user", "content": [{"type": "text"}]}]})),
        "a temperature as a string": (chat, dumped({**CHAT, "temperature": "0.7"})),
        "max_tokens as a string": (chat, dumped({**CHAT, "max_tokens": "ten"})),
        "stream as a string": (chat, dumped({**CHAT, "stream": "yes"})),
        "n of minus one": (chat, dumped({**CHAT, "n": -1})),
        "a data URL": (chat, dumped({**CHAT, "image": "data:image/png;base64," + "A" * 20_000})),
        "a model in Cyrillic": (chat, dumped({**CHAT, "model": "модель/../v1"})),
        "speech without input": ("POST /v1/audio/speech", dumped({"model": "tts", "voice": "alloy"})),
        "speech with a number as input": ("POST /v1/audio/speech", dumped({"model": "tts", "input": 12})),
        "a size that is none": ("POST /v1/images/generations", dumped({"prompt": "a hat", "size": "big"})),
        "frames as a string": ("POST /v1/videos/generations", dumped({"prompt": "a hat", "num_frames": "24"})),
    }  # fmt: skip
    return [Case(name, request(line, body)) for name, (line, body) in odd.items()]


def _types() -> list[Case]:
    """Content types and codings, right, wrong and missing."""
    base, form = dumped(BASE), b"prompt=a+hat&size=1024%C3%971024&prompt=again"
    deflated, gzipped = zlib.compress(base), zlib.compress(base, wbits=31)
    odd: dict[str, bytes] = {
        "no content type": request(body=base, type_=None),
        "JSON as text": request(body=base, type_=b"text/plain"),
        "JSON as form": request(body=base, type_=b"application/x-www-form-urlencoded"),
        "an unknown charset": request(body=base, type_=b"application/json; charset=klingon"),
        "a content type in capitals": request(body=base, type_=b"APPLICATION/JSON"),
        "a content type without a slash": request(body=base, type_=b"json"),
        "two content types": request("POST /generate", base, b"Content-Type: text/plain"),
        "a form": request("POST /generate", form, type_=b"application/x-www-form-urlencoded"),
        "multipart without a boundary": request("POST /v1/images/edits", b"--b--", type_=b"multipart/form-data"),
        "an empty multipart": request("POST /v1/images/edits", b"", type_=b"multipart/form-data; boundary=b"),
        "a gzip body": request("POST /v1/systemone", gzipped, b"Content-Encoding: gzip"),
        "a deflate body": request("POST /v1/systemone", deflated, b"Content-Encoding: deflate"),
        "labelled zstd but plain": request("POST /v1/systemone", base, b"Content-Encoding: zstd"),
        "labelled gzip, br": request("POST /v1/systemone", base, b"Content-Encoding: gzip, br"),
        "an unknown coding": request("POST /v1/systemone", base, b"Content-Encoding: rot13"),
    }  # fmt: skip
    names = {
        "a file": b"hat.png",
        "a file above its folder": b"../../etc/cron.d/x",
        "a file with a backslash": b"..\\\\..\\\\x.png",
        "a file with a quote": b'a\\"b.png',
        "a file with a NUL": b"a\0b.png",
        "a file in UTF-8": "帽子🎩.png".encode(),
        "a file in Latin-1": b"chap\xe9u.png",
        "a file without a name": b"",
        "a file of 300 letters": b"n" * 300,
    }
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    for name, file_name in names.items():
        odd[f"multipart: {name}"] = request(
            "POST /v1/images/edits", multipart(file_name, image), type_=b"multipart/form-data; boundary=----b"
        )
    odd["multipart: another boundary than said"] = request(
        "POST /v1/images/edits", multipart(b"a", image), type_=b"multipart/form-data; boundary=other"
    )
    odd["multipart: no last boundary"] = request(
        "POST /v1/images/edits", multipart(b"a", image)[:-8], type_=b"multipart/form-data; boundary=----b"
    )
    odd["multipart: 1 MB"] = request(
        "POST /generate", multipart(b"a", image * 4000), type_=b'multipart/form-data; boundary="----b"'
    )
    return [Case(name, raw) for name, raw in odd.items()]


def _targets() -> list[Case]:
    """Methods, paths and queries."""
    targets = {
        "a query": "/v1/systemone?a=1&b=2&a=3",
        "an empty query": "/v1/systemone?",
        "a query of two question marks": "/v1/systemone?a=?b",
        "a query with percent-encodings": "/x/y?q=%2F%3f%C3%A9+%20&%00=%ff",
        "a query with a bad percent": "/x/y?q=%zz%",
        "a query with a URL": "/x/y?u=http://other.test/a//b",
        "a query of 4000 letters": "/x/y?q=" + "z" * 4000,
        "a query with brackets": "/x/y?a[]=1&{b}=|^`\\",
        "a trailing slash": "/x/y/",
        "a double slash within": "/x//y",
        "a double slash at the subtree's start": "/x//",
        "three slashes": "/x/y///z",
        "an encoded slash": "/x/a%2Fb",
        "an encoded percent": "/x/a%252Fb",
        "an encoded space": "/x/a%20b",
        "an encoded NUL": "/x/a%00b",
        "an encoded line end": "/x/a%0d%0aX-Evil:%201",
        "an encoded question mark": "/x/a%3Fb=1",
        "encoded letters of the path": "/v1/%73ystemone",
        "UTF-8 percent-encoded": "/x/%E2%9C%93/%F0%9F%A6%8A",
        "Latin-1 percent-encoded": "/x/%e9",
        "a bad percent": "/x/%zz%",
        "a semicolon": "/x/y;v=1/z",
        "unreserved and sub-delims": "/x/-._~!$&'()*+,;=:@",
        "a pipe and brackets": "/x/a|b[c]{d}",
        "a plus": "/x/a+b",
        "a file-like name": "/x/model.safetensors",
    }
    cases = [Case(f"target: {name}", request(f"POST {target}", b"{}")) for name, target in targets.items()]
    methods = {
        "GET": request("GET /v1/models", type_=None, length=False),
        "GET with a query": request("GET /v1/models?limit=1", type_=None, length=False),
        "GET with a body": request("GET /v1/models", b"{}"),
        "GET /health": request("GET /health", type_=None, length=False),
        "HEAD": request("HEAD /v1/models", type_=None, length=False),
        "PUT": request("PUT /x/y", b"{}"),
        "PATCH": request("PATCH /x/y", b"{}"),
        "DELETE": request("DELETE /x/y", type_=None, length=False),
        "DELETE with a body": request("DELETE /x/y", b"{}"),
        "POST without a body": request("POST /x/y", type_=None, length=False),
        "POST of HTTP/1.0": request("POST /x/y", b"{}", version=b"HTTP/1.0"),
        "a target in absolute form": request("POST http://frontend.test/x/y?z=1", b"{}"),
        "a lower-case method": request("post /x/y", b"{}"),
        "an unknown method": request("BREW /x/y", b"{}"),
        "OPTIONS": request("OPTIONS /v1/chat/completions", type_=None, length=False),
        "OPTIONS *": request("OPTIONS *", type_=None, length=False),
        "TRACE": request("TRACE /x/y", type_=None, length=False),
        "GET on a POST path": request("GET /v1/systemone", type_=None, length=False),
        "an unknown path": request("POST /v2/systemone", b"{}"),
        "the root": request("GET /", type_=None, length=False),
        "a double slash before a known path": request("POST //v1/systemone", b"{}"),
        "a trailing slash on a known path": request("POST /v1/systemone/", b"{}"),
        "a known path in capitals": request("POST /V1/systemone", b"{}"),
        "a dot segment within a subtree": request("POST /x/../admin", b"{}"),
        "an encoded dot segment": request("POST /x/%2e%2e/admin", b"{}"),
        "an encoded slash after dots": request("POST /x/..%2fadmin", b"{}"),
        "a single dot": request("POST /x/./y", b"{}"),
        "a raw space in the target": request("POST /x/a b", b"{}"),
        "a raw UTF-8 target": request("POST /x/é".encode(), b"{}"),
        "a fragment": request("POST /x/y#part", b"{}"),
        "a control character in the target": request(b"POST /x/\x01", b"{}"),
        "no target": request("POST", b"{}"),
        "CONNECT": request("CONNECT frontend.test:443", type_=None, length=False),
    }
    return cases + [Case(f"method: {name}", raw) for name, raw in methods.items()]


def _fields() -> list[Case]:
    """Header fields."""
    long = b"X-Long: " + b"v" * 7000
    odd = {
        "a bearer key": [b"Authorization: Bearer sk-secret"],
        "basic credentials": [b"Authorization: Basic dTpw"],
        "a cookie": [b"Cookie: a=1; b=2"],
        "two of a name": [b"X-Twice: 1", b"X-Twice: 2"],
        "an empty value": [b"X-Empty:"],
        "spaces around a value": [b"X-Spaced:   a b \t "],
        "a value in UTF-8": ["X-Name: 東京".encode()],
        "a value in Latin-1": [b"X-Name: caf\xe9"],
        "a value of 7000 letters": [long],
        "a name with odd tokens": [b"x!#$%&'*+-.^`|~1: y"],
        "a name in capitals": [b"X-SHOUT: y"],
        "an underscore in a name": [b"X_Under: y"],
        "sixty fields": [b"X-N-%d: %d" % (n, n) for n in range(60)],
        "accept-encoding": [b"Accept-Encoding: gzip, br, zstd, identity;q=0"],
        "accept and user agent": [b"Accept: */*", b"User-Agent: odd/1.0 (x; y)"],
        "forwarded": [b"Forwarded: for=1.2.3.4;proto=https"],
        "a Via": [b"Via: 1.0 other"],
        "x-forwarded": [b"X-Forwarded-Host: evil.test", b"X-Forwarded-Prefix: /p"],
        "script name": [b"Script-Name: /x", b"Path-Info: /y"],
        "the openai client's": [b"OpenAI-Organization: o", b"x-stainless-retry-count: 0", b"Idempotency-Key: k"],
        "a traceparent": [b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        "an if-none-match": [b'If-None-Match: "a", W/"b"'],
        "a range": [b"Range: bytes=0-1"],
        "a proxy authorization": [b"Proxy-Authorization: Basic dTpw"],
        "keep-alive and proxy-connection": [b"Keep-Alive: timeout=5", b"Proxy-Connection: keep-alive"],
        "TE and Trailer": [b"TE: trailers", b"Trailer: X-Sum"],
        "a connection that names a field": [b"Connection: X-Hop", b"X-Hop: 1"],
        "an upgrade to a websocket": [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"],
        "an upgrade to h2c": [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"],
        "expect 100-continue": [b"Expect: 100-continue"],
        "an unknown expectation": [b"Expect: 200-ok"],
        "a space before the colon": [b"X-Bad : 1"],
        "a name with a space": [b"X Bad: 1"],
        "no colon": [b"nonsense"],
        "no name": [b": value"],
        "a folded value": [b"X-Folded: a", b" b"],
        "a NUL in a value": [b"X-Nul: a\0b"],
        "a bare CR in a value": [b"X-Cr: a\rb"],
        "a name in UTF-8": ["X-Né: 1".encode()],
        "two hosts": [b"Host: other.test"],
    }  # fmt: skip
    return [Case(f"field: {name}", request("POST /x/y", b"{}", *fields)) for name, fields in odd.items()]


def _framing() -> list[Case]:
    """Where a body ends."""
    coded = b"Transfer-Encoding: chunked"
    base = dumped(BASE)
    odd = {
        "chunked": request("POST /x/y", chunked(base), coded, length=False),
        "one byte a chunk": request("POST /x/y", chunked(*(bytes([b]) for b in base)), coded, length=False),
        "an empty chunked body": request("POST /x/y", chunked(), coded, length=False),
        "chunk extensions": request("POST /x/y", b'2;a=b;c="d"\r\n{}\r\n0;z\r\n\r\n', coded, length=False),
        "a trailer": request("POST /x/y", chunked(b"{}", last=False) + b"0\r\nX-Sum: 1\r\n\r\n", coded, length=False),
        "sizes in capitals with zeros": request("POST /x/y", b"000A\r\n0123456789\r\n0\r\n\r\n", coded, length=False),
        "chunked in capitals": request("POST /x/y", chunked(b"{}"), b"Transfer-Encoding: CHUNKED", length=False),
        "chunked of HTTP/1.0": request(
            "POST /x/y", chunked(b"{}"), coded, length=False, version=b"HTTP/1.0"
        ),
        "a length of zero": request("POST /x/y", b""),
        "a length with zeros": request("POST /x/y", b"{}", b"Content-Length: 0002", length=False),
        "the same length twice": request("POST /x/y", b"{}", b"Content-Length: 2"),
        "a length and chunked": request("POST /x/y", chunked(b"{}"), coded),
        "two lengths that differ": request("POST /x/y", b"{}", b"Content-Length: 1"),
        "a length with a plus": request("POST /x/y", b"{}", b"Content-Length: +2", length=False),
        "a negative length": request("POST /x/y", b"{}", b"Content-Length: -2", length=False),
        "a length in hex": request("POST /x/y", b"{}", b"Content-Length: 0x2", length=False),
        "a length with a space within": request("POST /x/y", b"{}", b"Content-Length: 1 2", length=False),
        "a length list": request("POST /x/y", b"{}", b"Content-Length: 2, 2", length=False),
        "a length that is a word": request("POST /x/y", b"{}", b"Content-Length: two", length=False),
        "an empty length": request("POST /x/y", b"", b"Content-Length:", length=False),
        "chunked twice": request("POST /x/y", chunked(b"{}"), coded, coded, length=False),
        "identity": request("POST /x/y", b"", b"Transfer-Encoding: identity", length=False),
        "chunked, identity": request("POST /x/y", chunked(b"{}"), coded + b", identity", length=False),
        "gzip, chunked": request("POST /x/y", chunked(b"{}"), b"Transfer-Encoding: gzip, chunked", length=False),
        "xchunked": request("POST /x/y", chunked(b"{}"), b"Transfer-Encoding: xchunked", length=False),
        "chunked behind a tab": request("POST /x/y", chunked(b"{}"), b"Transfer-Encoding:\tchunked", length=False),
        "chunked behind a vertical tab": request(
            "POST /x/y", chunked(b"{}"), b"Transfer-Encoding: \x0bchunked", length=False
        ),
        "a chunk size that is none": request("POST /x/y", b"zz\r\n{}\r\n0\r\n\r\n", coded, length=False),
        "a chunk size with 0x": request("POST /x/y", b"0x2\r\n{}\r\n0\r\n\r\n", coded, length=False),
        "a chunk longer than its size": request("POST /x/y", b"1\r\n{}\r\n0\r\n\r\n", coded, length=False),
        "a chunk size with a minus": request("POST /x/y", b"-2\r\n{}\r\n0\r\n\r\n", coded, length=False),
        "bare line feeds": request("POST /x/y", b"{}").replace(b"\r\n", b"\n"),
        "HTTP/2.0": request("POST /x/y", b"{}", version=b"HTTP/2.0"),
        "HTTP/1.9": request("POST /x/y", b"{}", version=b"HTTP/1.9"),
        "no version": request("POST /x/y", b"{}", version=b""),
        "no host": request("POST /x/y", b"{}").replace(b"Host: frontend.test\r\n", b""),
        "an empty host": request("POST /x/y", b"{}").replace(b"frontend.test", b""),
        "a host with a path": request("POST /x/y", b"{}").replace(b"frontend.test", b"a/b?c@d"),
        "a host in UTF-8": request("POST /x/y", b"{}").replace(b"frontend.test", "é.test".encode()),
        "an empty line first": b"\r\n" + request("POST /x/y", b"{}"),
        "a TLS hello": bytes.fromhex("16030100c8010000c40303") + b"\r\n\r\n",
        "a request line of 9000 letters": request("POST /x/" + "z" * 9000, b"{}"),
        "a field of 20000 letters": request("POST /x/y", b"{}", b"X-Long: " + b"v" * 20_000),
        "200 fields": request("POST /x/y", b"{}", *(b"X-%d: 1" % n for n in range(200))),
    }  # fmt: skip
    return [Case(f"framing: {name}", raw) for name, raw in odd.items()]


def _answers() -> list[Case]:
    """Answers of the lenient backend, as they are; the strict one echoes the request instead."""
    return [
        Case(f"answer: {name}", request(f"POST /answer/{name}", b"{}", b"Accept-Encoding: gzip"))
        for name in ANSWERS
    ]


CASES = [*_bodies(), *_types(), *_targets(), *_fields(), *_framing(), *_answers()]
