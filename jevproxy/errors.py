"""What can go wrong in an exchange: each error knows its HTTP status and the words a client may see.

Knows the wire contract's error bodies. Must not know sockets, Flask, requests, or what the backend is.
"""

import json


class ProxyError(Exception):
    """An answer of our own.

    `status` is the HTTP status, `error_type` the contract's machine-readable word, `message` words that are safe
    to show (no address, path or secret), `kind` the label of the failure in /metrics and the log, and
    `close` says that the client's connection cannot carry another request afterwards.
    """

    status = 500
    error_type = "internal_error"
    message = "The proxy failed to handle this request."
    kind = "internal"
    close = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.message)
        self.message = message or self.message

    def headers(self) -> list[tuple[str, str]]:
        """Header fields that belong to this error, beside the ones that every answer has."""
        return []


class NotFound(ProxyError):
    status, error_type, kind = 404, "not_found", "not_found"
    message = "There is nothing at this path."


class MethodNotAllowed(ProxyError):
    status, error_type, kind = 405, "method_not_allowed", "method_not_allowed"

    def __init__(self, allowed: list[str]) -> None:
        super().__init__(f"This path takes {', '.join(allowed)}.")
        self.allowed = allowed

    def headers(self) -> list[tuple[str, str]]:
        return [("Allow", ", ".join(self.allowed))]


class BadRequest(ProxyError):
    status, error_type, kind, close = 400, "invalid_request", "bad_request", True
    message = "The request is not well-formed HTTP."


class UriTooLong(BadRequest):
    status = 414
    message = "The request line is too long."


class FieldsTooLarge(BadRequest):
    status = 431
    message = "The header fields are too large."


class ExpectationFailed(BadRequest):
    status = 417
    message = "Only 100-continue can be expected."


class RequestTimeout(ProxyError):
    status, error_type, kind, close = 408, "request_timeout", "request_timeout", True
    message = "The request body did not arrive in time."


class BodyTooLarge(ProxyError):
    status, error_type, kind, close = 413, "request_too_large", "body_too_large", True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")


class UnknownCoding(ProxyError):
    status, error_type, kind, close = 501, "not_implemented", "bad_request", True
    message = "Of the transfer codings, only chunked is taken."


class NoSlot(ProxyError):
    status, error_type, kind = 503, "overloaded", "shed"
    message = "Too many requests are in flight. Try again shortly."

    def headers(self) -> list[tuple[str, str]]:
        return [("Retry-After", "1")]


class BackendUnreachable(ProxyError):
    status, error_type, kind = 502, "bad_gateway", "connect"
    message = "The backend cannot be reached."


class BackendBroken(ProxyError):
    """The backend accepted a connection and then did not give a whole, well-formed response."""

    status, error_type, kind = 502, "bad_gateway", "protocol"
    message = "The backend did not give a valid response."

    def __init__(self, kind: str = "protocol") -> None:
        super().__init__()
        self.kind = kind


class Interrupted(ProxyError):
    """Raised into an exchange from outside, wherever it happens to wait: in the server's write to the client, too."""


class DeadlineExceeded(Interrupted):
    status, error_type, kind = 504, "gateway_timeout", "timeout"
    message = "The backend did not answer in time."


class ClientGone(Interrupted):
    """The client's connection ended before its answer did. 499 is seen in the log only: nobody is there to read it."""

    status, error_type, kind, close = 499, "client_gone", "client_gone", True
    message = "The client left."


def error_body(status: int, error_type: str, message: str, request_id: str, openai: bool = False) -> bytes:
    """The JSON bytes of an error, as the System One wire contract has it: `{"detail": {...}}`.

    With `openai`, `{"error": {...}}` stands beside it, so that clients of that family show the words as well.
    """
    document: dict[str, object] = {
        "detail": {"error_type": error_type, "message": message, "request_id": request_id}
    }
    if openai:
        document["error"] = {"message": message, "type": error_type, "param": None, "code": str(status)}
    return json.dumps(document, separators=(",", ":")).encode()
