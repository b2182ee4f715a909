"""The worker's HTTP surface: routes, authentication, admission, and how refusals become responses.

It knows Flask and the order in which a request is let in. It must not know tokens, rows or devices.
"""

import errno
import hmac
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from worker import batch, document, observe, protocol
from worker.body import CODINGS, Intake
from worker.decide import Decision, Outcome, Policy, decide
from worker.errors import (
    ClientGone,
    CodingRefused,
    InternalError,
    KeyMissing,
    KeyWrong,
    LimitRefused,
    MediaRefused,
    MethodRefused,
    NotFound,
    Overloaded,
    Refused,
    Typed,
)
from worker.openapi import describe
from worker.server import incoming
from worker.serving import Serving
from worker.settings import Settings

JSON, NDJSON = "application/json", "application/x-ndjson"
# The media type that cannot be a JSON document. Any other label is ignored: curl's own is that of a form.
MULTIPART = "multipart/"
# How much of the body of a request that is refused unread is waited for, and how long, for the connection's sake.
LEFTOVER, LEFTOVER_S = 1 << 16, 1.0
# What nginx logs for a client that left before its answer; nobody receives it.
CLIENT_CLOSED = 499


@dataclass
class Streamed:
    """What became of a streamed answer: the bytes that were handed on, and the status that its log line has."""

    size: int = 0
    status: int = 200


class Admission:
    """Slots for requests past authentication. One that finds none is refused at once, never queued."""

    def __init__(self, slots: int, metrics: observe.Metrics) -> None:
        self._slots = threading.Semaphore(slots)
        self._metrics = metrics

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A slot for a block; raises Overloaded."""
        if not self._slots.acquire(blocking=False):
            self._metrics.shed.inc()
            raise Overloaded("The worker is at its limit of concurrent requests.")
        self._metrics.in_flight.inc()
        try:
            yield
        finally:
            self._metrics.in_flight.dec()
            self._slots.release()


def create_app(settings: Settings, serving: Serving, metrics: observe.Metrics) -> Flask:
    """The WSGI application. It serves /health before `serving` has its catalog."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    app.extensions |= {"serving": serving, "metrics": metrics}
    admission = Admission(settings.max_concurrent, metrics)
    intake = Intake(int(settings.max_body_mb * (1 << 20)), settings.body_timeout)
    leftovers = Intake(LEFTOVER, LEFTOVER_S)
    policy = Policy(settings.wire, settings.overflow == "refuse")
    key = settings.api_key.encode("utf-8", "surrogateescape") if settings.api_key else None

    def permitted() -> bool:
        # WSGI gives header bytes as latin-1; any byte may be in one.
        scheme, _, given = (
            request.headers.get("Authorization", "").encode("latin-1", "replace").partition(b" ")
        )
        return key is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key))

    def authenticate() -> None:
        if not permitted():
            if "Authorization" not in request.headers:
                raise KeyMissing("No API key was sent. Send it as: Authorization: Bearer KEY")
            raise KeyWrong("The API key is not valid.")

    def read_document() -> Any:
        media = request.headers.get("Content-Type", "").strip().lower()
        if media.startswith(MULTIPART):
            raise MediaRefused("This worker reads JSON text only; uploads, images and other media are not.")
        g.read = True
        return document.decode(intake.read(incoming(request.environ)))

    def systemone() -> Response:
        authenticate()
        with admission.slot():
            catalog = serving.ready()
            asked = protocol.parse(read_document(), settings.wire)
            model = catalog.find(asked.model)
            found = decide(
                model,
                catalog.lane,
                asked.state,
                asked.questions,
                policy,
                incoming(request.environ).client_is_there,
            )
        response = answer({"model": name_of(model), "answers": found.answers, "usage": found.usage})
        response.headers["Server-Timing"] = counted(found).header()
        return response

    def systemone_batch() -> Response:
        authenticate()
        with ExitStack() as held:
            held.enter_context(admission.slot())
            catalog = serving.ready()
            asked = protocol.parse_batch(read_document(), settings.wire)
            model = catalog.find(asked.model)
            found = each_counted(
                batch.outcomes(model, catalog.lane, asked, policy, incoming(request.environ).client_is_there)
            )
            if not (asked.stream or NDJSON in request.headers.get("Accept", "")):
                return answer(batch.whole(name_of(model), found))
            g.streamed = Streamed()
            lines = until_gone(batch.lines(name_of(model), found), g.streamed)
            response = Response(lines, mimetype=NDJSON)
            # The slot is held until the stream's end.
            response.call_on_close(held.pop_all().close)
            return response

    def counted(found: Decision) -> observe.Timing:
        timing = observe.Timing(found.queue_s, found.tokenize_s, found.forward_s, found.rows)
        metrics.decided(timing, found.usage["input_tokens"])
        return timing

    def each_counted(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if isinstance(outcome, Decision):
                counted(outcome)
            yield outcome

    def until_gone(lines: Iterator[bytes], streamed: Streamed) -> Iterator[bytes]:
        try:
            for line in lines:
                yield line
                streamed.size += len(line)
        except ClientGone:
            metrics.gone.inc()
            streamed.status = CLIENT_CLOSED
            # gunicorn then cuts the connection; a stream that merely ended would look whole.
            raise ConnectionResetError(errno.ECONNRESET, "the client left") from None
        except GeneratorExit:
            # gunicorn closes a stream that it could not write.
            metrics.gone.inc()
            streamed.status = CLIENT_CLOSED
            raise
        except Exception:
            streamed.status = 500
            raise

    def name_of(model: Any) -> str:
        return "laya-rl-agent" if settings.wire == "laya" else model.identity

    def models() -> Response:
        authenticate()
        return answer({"models": serving.ready().listing()})

    def health() -> Response:
        try:
            catalog = serving.ready()
        except Typed as refused:
            return answer({"status": refused.error_type}, refused.status)
        facts: dict[str, Any] = {"status": "ok"}
        if permitted():
            facts |= {"wire": settings.wire, "models": [dict(entry.facts) for entry in catalog.entries]}
        return answer(facts)

    def exposition() -> Response:
        authenticate()
        metrics.ready.set(serving.is_ready())
        if serving.catalog is not None:
            metrics.waiting_rows.set(serving.catalog.lane.snapshot().waiting_rows)
        return Response(metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def openapi() -> Response:
        return answer(describe(settings))

    for path, view, method in (
        ("/v1/systemone", systemone, "POST"),
        ("/v1/systemone/batch", systemone_batch, "POST"),
        ("/v1/models", models, "GET"),
        ("/health", health, "GET"),
        ("/metrics", exposition, "GET"),
        ("/openapi.json", openapi, "GET"),
    ):
        app.add_url_rule(path, path, view, methods=[method], provide_automatic_options=False)

    @app.before_request
    def begin() -> None:
        g.began = time.perf_counter()
        g.id = observe.request_id(request.headers.get("X-Request-Id", ""))

    @app.after_request
    def finish(response: Response) -> Response:
        if "read" not in g and (unread := incoming(request.environ)).has_body:
            leftovers.discard(unread)
        # The official SDKs read the first of these names.
        response.headers["x-typesafe-request-id"] = response.headers["x-request-id"] = g.id
        route = request.url_rule.rule if request.url_rule else "other"
        line = observe.Finished(
            g.id,
            request.method,
            route,
            request.path,
            response.status_code,
            response.content_length,
            g.began,
        )
        streamed: Streamed | None = g.get("streamed")
        if streamed is None:
            observe.finished(metrics, line)
            return response

        def closed() -> None:
            observe.finished(metrics, replace(line, status=streamed.status, size=streamed.size))

        response.call_on_close(closed)
        return response

    @app.errorhandler(Refused)
    def refuse(refused: Refused) -> Response:
        if isinstance(refused, LimitRefused) and refused.status != settings.limit_status:
            refused = refused.as_field()
        response = answer(refused.body(), refused.status)
        if refused.retry_after is not None:
            response.headers["Retry-After"] = str(refused.retry_after)
        if isinstance(refused, KeyWrong):
            response.headers["WWW-Authenticate"] = "Bearer"
        if isinstance(refused, CodingRefused):
            response.headers["Accept-Encoding"] = CODINGS
        return response

    @app.errorhandler(ClientGone)
    def gone(_: ClientGone) -> Response:
        metrics.gone.inc()
        return Response(status=CLIENT_CLOSED)

    @app.errorhandler(HTTPException)
    def refuse_route(error: HTTPException) -> Response:
        if isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ()))
            response = refuse(MethodRefused(f"This path takes {allowed}."))
            response.headers["Allow"] = allowed
            return response
        if error.code == NotFound.status_code:
            return refuse(NotFound("There is nothing at this path."))
        return refuse(Refused(error.code or 400, {"error_type": "invalid_request", "message": error.name}))

    @app.errorhandler(Exception)
    def fail(error: Exception) -> Response:
        observe.log.error("request %s failed", g.get("id", ""), exc_info=error)
        return refuse(InternalError())

    return app


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return Response(batch.encode(value), status, content_type=JSON)
