"""What the server refuses outside the application, answered in the contract's JSON in place of the server's HTML.

It knows the server's exceptions by their names, and the bytes of a response. It must not know sockets or routes.
"""

import json
from http import HTTPStatus

from worker.errors import ExpectationFailed, FieldsTooLarge, InternalError, LineTooLong, RequestRefused, Typed

# By the name of a gunicorn exception's class or base class, the nearest first. jevproxy has the same table.
TABLE: dict[str, type[RequestRefused] | type[InternalError]] = {
    "LimitRequestLine": LineTooLong,
    "LimitRequestHeaders": FieldsTooLarge,
    "ExpectationFailed": ExpectationFailed,
    "ParseException": RequestRefused,
    "BaseException": InternalError,
}
REFUSALS = {name: (refused.status_code, refused.error_type) for name, refused in TABLE.items()}


def refusal(error: BaseException) -> Typed:
    """What a client is told of an exception outside the application."""
    if isinstance(error, Typed):
        return error
    return next(TABLE[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in TABLE)()


def response(refused: Typed, request_id: str) -> tuple[bytes, bytes]:
    """Head and body of an HTTP/1.1 response after which the connection closes."""
    body = json.dumps(refused.body(), separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"x-typesafe-request-id: {request_id}\r\nx-request-id: {request_id}\r\n\r\n"
    )
    return head.encode("ascii"), body
