"""Which header fields cross the proxy: functions of header lists, in both directions.

Knows RFC 9110 and 9112. Must not know sockets, Flask, or who called.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache

Fields = list[tuple[str, str]]

# RFC 9110 section 7.6.1 names the fields that belong to one connection; Keep-Alive and Proxy-Connection are older
# customs of the same meaning; Proxy-Authenticate and Proxy-Authorization are between a client and its next proxy.
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# Host is the backend's; Expect is answered by this server; the id is written anew, once. A server that makes one of
# `_` and `-`, as CGI does, could take the misspelled ones for the framing.
_NOT_SENT = HOP_BY_HOP | {"host", "expect", "x-request-id", "content_length", "transfer_encoding"}
_STREAMS = frozenset(
    (
        "text/event-stream",
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/json-seq",
    )
)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id(fields: Iterable[tuple[str, str]]) -> str:
    """The client's x-request-id if there is one that is safe to log and to send on, else a new one."""
    for name, value in fields:
        if len(name) == 12 and name.lower() == "x-request-id" and _SANE_ID.fullmatch(value):
            return value
    return secrets.token_hex(16)


def to_backend(fields: Sequence[tuple[str, str]], request_id: str) -> Fields:
    """The fields to send to the backend: the client's end-to-end ones, in order, twice if they came twice.

    Content-Length is among them if the client sent one. Transfer-Encoding is not: the caller frames the body.
    """
    dropped = _dropped(fields, _NOT_SENT)
    crossing = [(_spelled(name), value) for name, value in fields if name.lower() not in dropped]
    crossing.append(("X-Request-Id", request_id))
    return crossing


def to_client(fields: Sequence[tuple[str, str]], request_id: str) -> Fields:
    """The fields of a backend's response to send to the client.

    Content-Length stays, unless the body came in chunks: RFC 9112 section 6.3 has the chunks win then.
    """
    dropped = _dropped(fields, HOP_BY_HOP)
    if is_chunked(fields):
        dropped = dropped | {"content-length"}
    crossing = []
    named = False
    for name, value in fields:
        lowered = name.lower()
        if lowered in dropped:
            continue
        named = named or lowered == "x-request-id"
        crossing.append((name, value))
    if not named:
        crossing.append(("X-Request-Id", request_id))
    return crossing


def content_length(fields: Iterable[tuple[str, str]]) -> int | None:
    """The one Content-Length among fields, or None. Raises ValueError for a malformed one, or two that differ."""
    values = {value.strip() for name, value in fields if name.lower() == "content-length"}
    if not values:
        return None
    (value,) = values
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise ValueError("Content-Length is not a number")
    return int(value)


def is_chunked(fields: Iterable[tuple[str, str]]) -> bool:
    """Whether a body comes in chunks."""
    return any(name.lower() == "transfer-encoding" for name, _ in fields)


def is_coded(fields: Iterable[tuple[str, str]]) -> bool:
    """Whether a body has a transfer coding beside chunked, which would have to be undone here."""
    return any(
        name.lower() == "transfer-encoding" and value.strip().lower() != "chunked" for name, value in fields
    )


def media_type(content_type: str | None) -> str:
    """`application/json` from `Application/JSON; charset=utf-8`, empty when there is none."""
    return (content_type or "").partition(";")[0].strip().lower()


def is_stream(media: str) -> bool:
    """Whether a body of this media type is meant to be read while it arrives, over any length of time."""
    return media in _STREAMS or media.startswith(("audio/", "video/"))


def _dropped(fields: Iterable[tuple[str, str]], always: frozenset[str]) -> frozenset[str] | set[str]:
    """`always`, and what the Connection fields name: but never the length, which no sender may hide."""
    named = [value for name, value in fields if name.lower() == "connection"]
    if not named or (len(named) == 1 and named[0].lower() in ("keep-alive", "close")):
        return always
    tokens = {token.strip().lower() for value in named for token in value.split(",")}
    return always | (tokens - {"", "content-length"})


@lru_cache(maxsize=1024)
def _spelled(name: str) -> str:
    """The usual spelling of a field name: WSGI servers give names in capitals, and some backends are strict."""
    return name.title() if name.isupper() else name
