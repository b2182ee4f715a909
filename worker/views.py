"""One view for each route: what a request goes through, from its key to its answer.

It knows the order in which a request is let in, and Flask's request. It must not know tokens, rows or devices.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flask import Response, g, request

from worker import batch, document, observe, page, protocol
from worker.admission import Admission, Key
from worker.body import Intake
from worker.decide import Decision, Outcome, Policy, ServedModel, decide
from worker.errors import ClientGone, MediaRefused, NotFound, Typed
from worker.openapi import describe
from worker.responses import CLIENT_CLOSED, answer, cut
from worker.server import incoming
from worker.serving import Serving
from worker.settings import Settings

NDJSON = "application/x-ndjson"
# The media type that cannot be a JSON document. Any other label is ignored: curl's own is that of a form.
MULTIPART = "multipart/"


@dataclass
class Streamed:
    """What became of a streamed answer: the bytes that were handed on, and the status that its log line has."""

    size: int = 0
    status: int = 200


class Views:
    """The routes of one worker. Each method of `routes` answers the request that Flask has at hand."""

    def __init__(self, settings: Settings, serving: Serving, metrics: observe.Metrics) -> None:
        self._settings = settings
        self._serving = serving
        self._metrics = metrics
        self._key = Key(settings.api_key)
        self._admission = Admission(settings.max_concurrent, metrics)
        self._intake = Intake(int(settings.max_body_mb * (1 << 20)), settings.body_timeout)
        self._policy = Policy(settings.wire, settings.overflow == "refuse")
        self._page = page.files() if settings.shows_playground else {}

    def routes(self) -> tuple[tuple[str, str, Any], ...]:
        """Method, path and view of every route."""
        return (
            ("POST", "/v1/systemone", self.systemone),
            ("POST", "/v1/systemone/batch", self.systemone_batch),
            ("GET", "/v1/models", self.models),
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.exposition),
            ("GET", "/openapi.json", self.openapi),
            *(("GET", path, self.playground) for path in ("/playground", "/playground/<name>") if self._page),
        )

    def systemone(self) -> Response:
        self._authenticate()
        with self._admission.slot():
            catalog = self._serving.ready()
            asked = protocol.parse(self._read_document(), self._settings.wire)
            model = catalog.find(asked.model)
            alive = incoming(request.environ).client_is_there
            decision = decide(model, catalog.lane, asked.state, asked.questions, self._policy, alive)
        response = answer({"model": self._name(model), "answers": decision.answers, "usage": decision.usage})
        response.headers["Server-Timing"] = self._counted(decision).header()
        return response

    def systemone_batch(self) -> Response:
        self._authenticate()
        with ExitStack() as held:
            held.enter_context(self._admission.slot())
            catalog = self._serving.ready()
            asked = protocol.parse_batch(self._read_document(), self._settings.wire)
            model = catalog.find(asked.model)
            alive = incoming(request.environ).client_is_there
            outcomes = self._each_counted(batch.outcomes(model, catalog.lane, asked, self._policy, alive))
            if not (asked.stream or NDJSON in request.headers.get("Accept", "")):
                return answer(batch.whole(self._name(model), outcomes))
            g.streamed = Streamed()
            lines = self._until_gone(batch.lines(self._name(model), outcomes), g.streamed)
            response = Response(lines, mimetype=NDJSON)
            # The slot is held until the stream's end.
            response.call_on_close(held.pop_all().close)
            return response

    def models(self) -> Response:
        self._authenticate()
        return answer({"models": self._serving.ready().listing()})

    def health(self) -> Response:
        try:
            catalog = self._serving.ready()
        except Typed as refused:
            return answer({"status": refused.error_type}, refused.status)
        facts: dict[str, Any] = {"status": "ok"}
        if self._key.fits(request.headers.get("Authorization", "")):
            models = [dict(entry.facts) for entry in catalog.entries]
            facts |= {"wire": self._settings.wire, "models": models}
        return answer(facts)

    def exposition(self) -> Response:
        self._authenticate()
        ready = self._serving.is_ready()
        self._metrics.ready.set(ready)
        if ready:
            self._metrics.waiting_rows.set(self._serving.ready().lane.snapshot().waiting_rows)
        return Response(self._metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def openapi(self) -> Response:
        return answer(describe(self._settings))

    def playground(self, name: str = page.INDEX) -> Response:
        if name not in self._page:
            raise NotFound("There is nothing at this path.")
        file = self._page[name]
        response = Response(file.body, content_type=file.media_type, headers=page.FIELDS)
        response.set_etag(file.etag)
        response.make_conditional(request)
        return response

    def _authenticate(self) -> None:
        self._key.check(request.headers.get("Authorization", ""))

    def _read_document(self) -> Any:
        media = request.headers.get("Content-Type", "").strip().lower()
        if media.startswith(MULTIPART):
            raise MediaRefused("This worker reads JSON text only; uploads, images and other media are not.")
        g.read = True
        return document.decode(self._intake.read(incoming(request.environ)))

    def _name(self, model: ServedModel) -> str:
        return "laya-rl-agent" if self._settings.wire == "laya" else model.identity

    def _counted(self, decision: Decision) -> observe.Timing:
        timing = observe.Timing(decision.queue_s, decision.tokenize_s, decision.forward_s, decision.rows)
        self._metrics.decided(timing, decision.usage["input_tokens"])
        return timing

    def _each_counted(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if isinstance(outcome, Decision):
                self._counted(outcome)
            yield outcome

    def _until_gone(self, lines: Iterator[bytes], streamed: Streamed) -> Iterator[bytes]:
        try:
            for line in lines:
                yield line
                streamed.size += len(line)
        except ClientGone:
            self._metrics.gone.inc()
            streamed.status = CLIENT_CLOSED
            # A stream that merely ended would look whole.
            raise cut() from None
        except GeneratorExit:
            # gunicorn closes a stream that it could not write.
            self._metrics.gone.inc()
            streamed.status = CLIENT_CLOSED
            raise
        except Exception:
            streamed.status = 500
            raise
