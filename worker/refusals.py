"""What gunicorn refuses before there is a request, in the contract's JSON in place of gunicorn's HTML.

It knows gunicorn's errors. It must not know routes, Flask or models.
"""

import json
import socket
from typing import Any

from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException

from worker.errors import Refused
from worker.observe import log, request_id

REFUSALS = (
    (LimitRequestLine, 414, "URI Too Long", "The request line is too long."),
    (LimitRequestHeaders, 431, "Request Header Fields Too Large", "The header fields are too large."),
    (ParseException, 400, "Bad Request", "The request is not well-formed HTTP."),
    (TimeoutError, 408, "Request Timeout", "The request's head did not arrive in time."),
    (BaseException, 500, "Internal Server Error", "Internal error."),
)


def refuse(request: Any, client: socket.socket, address: Any, error: BaseException) -> None:
    """A gunicorn worker's `handle_error`: answer `client`, whose connection gunicorn then closes."""
    status, reason, message = next(row[1:] for row in REFUSALS if isinstance(error, row[0]))
    if status == 500:
        log.error("a request failed outside the application", exc_info=error)
    error_type = {408: "request_timeout", 500: "internal_error"}.get(status, "bad_request")
    body = json.dumps(Refused(status, {"error_type": error_type, "message": message}).body()).encode()
    given = request_id("")
    head = (
        f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nx-typesafe-request-id: {given}\r\nx-request-id: {given}\r\n\r\n"
    )
    try:
        client.sendall(head.encode() + body)
    except OSError:  # gone meanwhile
        pass
