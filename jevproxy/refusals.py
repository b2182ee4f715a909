"""What gunicorn refuses before there is a request, or cannot finish outside the application: answered, counted, logged.

Knows gunicorn's exceptions by their names, and the bytes of a response. Must not know sockets, gunicorn or Flask.
"""

import time
from collections.abc import Callable
from http import HTTPStatus

from .errors import BadRequest, ExpectationFailed, FieldsTooLarge, ProxyError, UriTooLong, error_body
from .headers import Fields, request_id
from .observe import Observer, Record

# By the name of an exception's class or base class, the nearest first. The worker has the same table.
_TABLE: dict[str, type[ProxyError]] = {
    "LimitRequestLine": UriTooLong,
    "LimitRequestHeaders": FieldsTooLarge,
    "ExpectationFailed": ExpectationFailed,
    "ParseException": BadRequest,
    "BaseException": ProxyError,
}
REFUSALS = {name: (refused.status, refused.error_type) for name, refused in _TABLE.items()}


def refusal(error: BaseException) -> ProxyError:
    """What a client is told of an exception outside the application."""
    return next(_TABLE[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _TABLE)()


def response(refused: ProxyError, request_id: str) -> tuple[bytes, bytes]:
    """Head and body of an HTTP/1.1 response after which the connection closes."""
    body = error_body(refused.status, refused.error_type, refused.message, request_id)
    head = (
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n\r\n"
    )
    return head.encode("ascii"), body


def refuse(
    observer: Observer,
    method: str,
    path: str,
    fields: Fields,
    error: BaseException,
    send: Callable[[bytes], None],
) -> None:
    """Answer in the contract's JSON by `send`, which may raise OSError; then count and log."""
    refused = refusal(error)
    kind = "refused" if refused.status < 500 else refused.kind
    record = Record(method, path, request_id(fields), time.perf_counter(), status=refused.status, kind=kind)
    head, body = response(refused, record.request_id)
    try:
        send(head + body)
        record.sent = len(body)
    except OSError:  # the client has gone meanwhile
        pass
    observer.finish(record)
