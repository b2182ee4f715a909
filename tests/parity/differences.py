"""What may differ between a direct answer and a proxied one: each by a name that docs/http.md explains.

A check gets both answers, the one with fewer programs in between first, and fails where they differ otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

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

# jevproxy beside a backend asked directly.
OURS: dict[str, Check] = {
    "not well-formed": refused(400),
    "request line too long": refused(414),
    "expectation": refused(417),
    "fields too large": refused(431),
    "transfer coding": refused(501),
    "no such path": refused(404),
    "no such method": refused(405),
    "dot segments": refused(404),
    "hop-by-hop": same_but_fields(*_HOP, "expect"),
    "absolute form": _origin_form,
    "empty line first": _served,
}

# nginx with the shipped site and jevproxy behind it, beside jevproxy alone.
NGINX: dict[str, Check] = {
    "nginx: refused": refused(400),
    "nginx: TRACE": refused(405),
    "nginx: transfer coding": refused(501),
    "nginx: version": refused(505),
    "nginx: HTTP/0.9": lambda fewer, more: None,
    "nginx: mended": _served,
    "nginx: field dropped": same_but_fields("x!#$%&'*+-.^`|~1"),
    "nginx: named by Connection": same_but_fields("x-hop", "http2-settings"),
    "nginx: framing": same_but_fields("content-length", "transfer-encoding"),
}
