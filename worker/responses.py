"""Responses: JSON answers, and what each refusal becomes.

It knows Flask's responses and error handlers. It must not know routes, or how a request is decided.
"""

import errno
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, g
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from worker import observe
from worker.body import CODINGS
from worker.encoding import encode
from worker.errors import (
    ClientGone,
    CodingRefused,
    InternalError,
    KeyWrong,
    LimitRefused,
    MethodRefused,
    NotFound,
    Refused,
)

JSON = "application/json"
# What nginx logs for a client that left before its answer. It is for the log: nothing of it is sent.
CLIENT_CLOSED = 499


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(encode(value), status, content_type=JSON)


def cut() -> ConnectionResetError:
    """What a response's iterator raises so that the server closes the connection without another byte."""
    return ConnectionResetError(errno.ECONNRESET, "the client left")


def refusal(refused: Refused) -> Response:
    """A refusal in the contract's words, with the header fields that belong to it."""
    response = answer(refused.body(), refused.status)
    if refused.retry_after is not None:
        response.headers["Retry-After"] = str(refused.retry_after)
    if isinstance(refused, KeyWrong):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(refused, CodingRefused):
        response.headers["Accept-Encoding"] = CODINGS
    return response


def handle_errors(app: Flask, metrics: observe.Metrics, limit_status: int) -> None:
    """Turn every exception into a response. `limit_status`: 400 or 422, for counts out of range."""

    @app.errorhandler(Refused)
    def refused(error: Refused) -> Response:
        if isinstance(error, LimitRefused) and error.status != limit_status:
            error = error.as_field()
        return refusal(error)

    @app.errorhandler(ClientGone)
    def gone(_: ClientGone) -> Response:
        metrics.gone.inc()
        return Response(_nothing(), CLIENT_CLOSED)

    @app.errorhandler(HTTPException)
    def no_route(error: HTTPException) -> Response:
        if isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ()))
            response = refusal(MethodRefused(f"This path takes {allowed}."))
            response.headers["Allow"] = allowed
            return response
        if error.code == NotFound.status_code:
            return refusal(NotFound("There is nothing at this path."))
        return refusal(Refused(error.code or 400, {"error_type": "invalid_request", "message": error.name}))

    @app.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        observe.log.error("request %s failed", g.get("id", ""), exc_info=error)
        return refusal(InternalError())


def _nothing() -> Iterator[bytes]:
    raise cut()
    yield b""
