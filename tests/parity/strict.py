"""A strict backend: a WSGI application that answers with what it saw, for a plain gunicorn (sync worker, defaults).

gunicorn refuses what HTTP does not allow before the application sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

# Written anew on each hop (RFC 9110 section 7.6.1), or by jevproxy and nginx as docs/http.md says.
PER_HOP = {"host", "connection", "x-request-id", "x-forwarded-for", "x-forwarded-proto"}


def shown(name: str, value: str) -> list[str]:
    """A field as it is compared: codings have no case (RFC 9112 section 7)."""
    return [name, value.lower() if name == "transfer-encoding" else value]


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    fields = {
        key.removeprefix("HTTP_").replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_") or (key in ("CONTENT_TYPE", "CONTENT_LENGTH") and value)
    }
    try:
        body = environ["wsgi.input"].read().decode("latin-1")
    except Exception as error:
        body = f"unreadable: {type(error).__name__}"
    seen = {
        "method": environ["REQUEST_METHOD"],
        "target": environ["RAW_URI"],
        "fields": sorted(shown(name, value) for name, value in fields.items() if name not in PER_HOP),
        "body": body,
    }
    answer = json.dumps(seen).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
    return [answer]
