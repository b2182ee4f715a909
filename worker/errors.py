"""The worker's own exceptions: each knows its HTTP status and the words that a client may read.

It knows the error bodies of the System One contract, and must not know a framework, a model or a request.
Anything that is raised and is not one of these is a bug: a bare 500 for the client, a trace in the log.
"""

from dataclasses import dataclass
from typing import Any

# Words about a client's own input are cut here, so that a hostile name cannot fill a log or a terminal.
MAX_WORDS = 300


def words(text: str, limit: int = MAX_WORDS) -> str:
    """`text` on one line of at most `limit` characters: control and unpaired characters as escapes."""
    start = text[: limit + 1]
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in start
    )
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


class StartFailed(Exception):
    """The worker cannot start. The message is one line for the operator, never seen by a client."""

    # gunicorn's status of a process that cannot boot: its parent then ends with it, and starts no other.
    exit_status = 3


class SettingRefused(StartFailed):
    """An environment variable has a value that means nothing: another try would fail alike."""

    # sysexits.h: EX_CONFIG. The systemd unit does not start a worker again that ended with it.
    exit_status = 78

    def __init__(self, name: str, accepted: str) -> None:
        super().__init__(f"{name}: {accepted}")


class CheckpointRefused(StartFailed):
    """A checkpoint that cannot be served: `where` is its file, `key` what in it, `reason` why."""

    def __init__(self, where: str, key: str, reason: str) -> None:
        super().__init__(words(": ".join(part for part in (where, key, reason) if part), 1000))


class Refused(Exception):
    """A request that gets no answer. `detail`: words, a typed error, or a list of field errors."""

    def __init__(self, status: int, detail: Any, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"detail": self.detail}


class Typed(Refused):
    """A refusal with a type that programs can tell apart, and a message for people."""

    status_code = 500
    error_type = "internal_error"
    wait: int | None = None

    def __init__(self, message: str) -> None:
        detail = {"error_type": self.error_type, "message": words(message)}
        super().__init__(self.status_code, detail, self.wait)


class UnknownModel(Typed):
    """The model named in the request is not served here."""

    status_code, error_type = 400, "api_usage_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown model: {name}")


class UsageRefused(Typed):
    """A request of the right shape that asks for what is not served."""

    status_code, error_type = 400, "api_usage_error"


class TooManyTokens(Typed):
    """The request does not fit the checkpoint's token budget."""

    status_code, error_type = 400, "max_tokens_exceeded"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One missing or mistyped field: where it is, what is wrong, and the kind as FastAPI names it."""

    loc: tuple[str | int, ...]
    msg: str
    type: str


class FieldsRefused(Refused):
    """Missing or mistyped fields: 422 with a list that names each."""

    def __init__(self, errors: list[FieldError]) -> None:
        detail = [
            {
                "loc": [words(part, 100) if isinstance(part, str) else part for part in error.loc],
                "msg": words(error.msg),
                "type": error.type,
            }
            for error in errors
        ]
        super().__init__(422, detail)


class LimitRefused(Refused):
    """A count out of its range, found under `at` in the body: 400 with plain words, as the hosted service answers."""

    def __init__(self, message: str, *at: str | int) -> None:
        super().__init__(400, words(message))
        self.at = at

    def as_field(self) -> FieldsRefused:
        """The same as a wrong field."""
        return FieldsRefused([FieldError(("body", *self.at), self.detail, "value_error")])


class KeyMissing(Typed):
    """No bearer key was sent, and one is required."""

    status_code, error_type = 403, "authentication_error"


class KeyWrong(Typed):
    """The bearer key is not the configured one."""

    status_code, error_type = 401, "authentication_error"


class NotFound(Typed):
    """No such path."""

    status_code, error_type = 404, "not_found"


class MethodRefused(Typed):
    """The path exists, for other methods."""

    status_code, error_type = 405, "method_not_allowed"


class BodyLate(Typed):
    """The request body did not arrive in time."""

    status_code, error_type = 408, "request_timeout"


class BodyTooLarge(Typed):
    """The request body, as sent or as decoded, is over the limit."""

    status_code, error_type = 413, "request_too_large"


class RequestRefused(Typed):
    """A request that is not well-formed HTTP. Of what it asked for, nothing is known for sure."""

    status_code, error_type = 400, "invalid_request"

    def __init__(self, message: str = "The request is not well-formed HTTP.") -> None:
        super().__init__(message)


class LineTooLong(RequestRefused):
    """The request line is over the server's limit."""

    status_code = 414

    def __init__(self) -> None:
        super().__init__("The request line is too long.")


class FieldsTooLarge(RequestRefused):
    """The header fields are over the server's limits."""

    status_code = 431

    def __init__(self) -> None:
        super().__init__("The header fields are too large.")


class ExpectationFailed(RequestRefused):
    """The Expect field asks for something else than 100-continue."""

    status_code = 417

    def __init__(self) -> None:
        super().__init__("Only 100-continue can be expected.")


class BodyIncomplete(RequestRefused):
    """The request body ended before its end, or cannot be decoded."""


class HeadLate(Typed):
    """The request's head did not arrive in time."""

    status_code, error_type = 408, "request_timeout"

    def __init__(self) -> None:
        super().__init__("The request's head did not arrive in time.")


class InternalError(Typed):
    """A fault of the worker. The log has the details, under the request's id."""

    def __init__(self) -> None:
        super().__init__("Internal error.")


class MediaRefused(Typed):
    """A content type, encoding or medium that a text-only worker does not take."""

    status_code, error_type = 415, "unsupported_media_type"


class CodingRefused(MediaRefused):
    """A content coding that is not decoded here; the response names those that are."""


class Overloaded(Typed):
    """No room now: the client may come back after a second."""

    status_code, error_type, wait = 503, "overloaded", 1


class Loading(Typed):
    """The models are not ready yet."""

    status_code, error_type, wait = 503, "loading", 1


class DeviceFailed(Typed):
    """The device failed under this request; the process ends and its supervisor starts another."""

    status_code, error_type, wait = 503, "device_failed", 5

    def __init__(self, message: str = "The device failed; the worker is being replaced.") -> None:
        super().__init__(message)


class AnswerWrong(Typed):
    """What the model gave does not fit the questions. Never sent as a success."""

    status_code, error_type = 500, "internal_error"

    def __init__(self) -> None:
        super().__init__("The answer failed its check.")


class ClientGone(Exception):
    """The client left before its answer: nothing is sent, and its work is dropped."""
