"""What may differ between a direct answer and a proxied one: each by a name that docs/http.md explains.

A check gets both answers, the one with fewer programs in between first, and fails where they differ otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.parity.corpus import CASES
from tests.parity.wire import Answer

Check = Callable[[Answer, Answer], None]


def error_of(answer: Answer, status: int) -> dict[str, Any]:
    """The detail of an error of jevproxy's own, or of the shipped nginx site."""
    assert answer.code == status, answer
    assert dict(answer.fields)["content-type"] == "application/json", answer
    detail: dict[str, Any] = answer.json()["detail"]
    assert set(detail) == {"error_type", "message", "request_id"} and detail["message"], answer
    return detail


def refused(status: int) -> Check:
    def check(direct: Answer, proxied: Answer) -> None:
        error_of(proxied, status)
        assert direct.code in (200, 400, 404, 405, 414, 417, 431, 501), direct

    return check


def _seen(answer: Answer) -> dict[str, Any]:
    assert answer.code == 200, answer
    seen: dict[str, Any] = answer.json()
    return seen


def same_but_fields(*names: str) -> Check:
    """The backend saw the same request, without the fields of these names."""

    def check(direct: Answer, proxied: Answer) -> None:
        one, other = _seen(direct), _seen(proxied)
        for seen in (one, other):
            seen["fields"] = [pair for pair in seen["fields"] if pair[0] not in names]
        assert one == other

    return check


def _origin_form(direct: Answer, proxied: Answer) -> None:
    one, other = _seen(direct), _seen(proxied)
    assert one.pop("target").endswith("://frontend.test" + other.pop("target"))
    assert one == other


def _served(fewer: Answer, more: Answer) -> None:
    """Where a program in front mends or drops what the next one would refuse."""
    assert more.code == 200 and json.loads(more.body)["target"] == "/x/y", more


_HOP = (
    "proxy-authorization",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "x-hop",
    "upgrade",
    "http2-settings",
)


@dataclass(frozen=True)
class Difference:
    """`cases`: the names of those in the corpus whose answers differ in this way, and in no other."""

    name: str
    check: Check
    cases: list[str]


def _by_case(*differences: Difference) -> dict[str, Difference]:
    found = {case: difference for difference in differences for case in difference.cases}
    assert found.keys() <= {case.name for case in CASES}
    assert len(found) == sum(len(difference.cases) for difference in differences), (
        "a case that differs in two ways"
    )
    return found


# jevproxy beside a backend asked directly, by case.
OURS = _by_case(
    Difference("not well-formed", refused(400), [
        "two content types", "method: a lower-case method", "method: a raw space in the target",
        "method: a raw UTF-8 target", "method: a control character in the target", "method: no target",
        "method: a fragment",
        "field: a space before the colon", "field: a name with a space", "field: no colon", "field: no name",
        "field: a folded value", "field: a NUL in a value", "field: a bare CR in a value",
        "field: a name in UTF-8", "field: two hosts", "framing: chunked of HTTP/1.0",
        "framing: the same length twice", "framing: a length and chunked", "framing: two lengths that differ",
        "framing: a length with a plus", "framing: a negative length", "framing: a length in hex",
        "framing: a length with a space within", "framing: a length list", "framing: a length that is a word",
        "framing: an empty length", "framing: chunked twice", "framing: identity", "framing: chunked, identity",
        "framing: xchunked", "framing: chunked behind a vertical tab", "framing: a chunk size that is none",
        "framing: a chunk size with 0x", "framing: a chunk longer than its size",
        "framing: a chunk size with a minus", "framing: bare line feeds", "framing: HTTP/2.0",
        "framing: no version", "framing: a TLS hello",
    ]),
    Difference("request line too long", refused(414), ["framing: a request line of 9000 letters"]),
    Difference("expectation", refused(417), ["field: an unknown expectation"]),
    Difference("fields too large", refused(431), ["framing: a field of 20000 letters", "framing: 200 fields"]),
    Difference("transfer coding", refused(501), ["framing: gzip, chunked"]),
    Difference("no such path", refused(404), [
        "method: OPTIONS *", "method: CONNECT", "method: an unknown path", "method: the root",
        "method: a known path in capitals",
    ]),
    Difference("no such method", refused(405), [
        "method: an unknown method", "method: OPTIONS", "method: TRACE", "method: GET on a POST path",
    ]),
    Difference("dot segments", refused(404), [
        "method: a dot segment within a subtree", "method: an encoded dot segment",
        "method: an encoded slash after dots", "method: a single dot",
    ]),
    Difference("hop-by-hop", same_but_fields(*_HOP, "expect"), [
        "field: a proxy authorization", "field: keep-alive and proxy-connection", "field: TE and Trailer",
        "field: a connection that names a field", "field: an upgrade to a websocket",
        "field: an upgrade to h2c", "field: expect 100-continue",
    ]),
    Difference("absolute form", _origin_form, ["method: a target in absolute form"]),
    Difference("empty line first", _served, ["framing: an empty line first"]),
)  # fmt: skip

# nginx with the shipped site and jevproxy behind it, beside jevproxy alone, by case.
NGINX = _by_case(
    Difference("nginx: refused", refused(400), [
        "target: an encoded NUL", "target: a bad percent", "method: OPTIONS *", "method: CONNECT",
        "framing: a chunk size that is none", "framing: a chunk size with 0x",
        "framing: a chunk longer than its size", "framing: a chunk size with a minus", "framing: no host",
        "framing: an empty host", "framing: a host with a path", "framing: a field of 20000 letters",
    ]),
    Difference("nginx: TRACE", refused(405), ["method: TRACE"]),
    Difference("nginx: transfer coding", refused(501), [
        "framing: identity", "framing: chunked, identity", "framing: gzip, chunked", "framing: xchunked",
        "framing: chunked behind a tab", "framing: chunked behind a vertical tab",
    ]),
    Difference("nginx: version", refused(505), ["framing: HTTP/2.0"]),
    Difference("nginx: HTTP/0.9", lambda fewer, more: None, ["framing: no version"]),
    Difference("nginx: mended", _served, [
        "field: an unknown expectation", "field: no colon", "field: a name in UTF-8",
        "framing: bare line feeds",
    ]),
    Difference("nginx: field dropped", same_but_fields("x!#$%&'*+-.^`|~1"), ["field: a name with odd tokens"]),
    Difference("nginx: named by Connection", same_but_fields("x-hop", "http2-settings"), [
        "field: a connection that names a field", "field: an upgrade to h2c",
    ]),
    Difference("nginx: framing", same_but_fields("content-length", "transfer-encoding"), [
        "framing: chunked", "framing: one byte a chunk", "framing: an empty chunked body",
        "framing: chunk extensions", "framing: a trailer", "framing: sizes in capitals with zeros",
        "framing: chunked in capitals", "framing: a length with zeros",
    ]),
)  # fmt: skip
