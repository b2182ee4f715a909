"""The Flask application: which paths are forwarded, what is answered here, and how an answer leaves.

Knows Flask. Must not know how the backend is spoken to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import flask
from flask.sessions import SessionInterface
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as NoSuchMethod
from werkzeug.exceptions import NotFound as NoSuchPath
from werkzeug.routing import PathConverter

from .delivery import Delivery
from .errors import ClientGone, MethodNotAllowed, NotFound, ProxyError, error_body
from .headers import Fields
from .observe import CONTENT_TYPE, Observer
from .settings import Route, Settings
from .slots import Slots
from .transaction import KEY, Transaction
from .upstream import Backend

HEALTH = Route("GET", "/health", admitted=False)


class Answer(flask.Response):
    """What leaves for one request: status, header fields as they are, body pieces as they come.

    `last`: the connection ends with it, whatever the client still sends.
    """

    def __init__(
        self, status: int, reason: str, fields: Fields, pieces: Iterable[bytes], last: bool = False
    ) -> None:
        # werkzeug's own __init__ is left out: it would guess a content type and a length, and wrap the body.
        self.headers = Headers(fields)
        self._status_code = status
        self._status = f"{status} {reason}"
        self._pieces = pieces
        self._last = last

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Delivery:
        transaction: Transaction = environ[KEY]
        delivery = transaction.deliver(self._status_code, self._pieces, self._last)
        start_response(self._status, list(self.headers))
        return delivery


class NoSessions(SessionInterface):
    """There are no user sessions here: without this, Flask would look for one in each request."""

    def open_session(self, app: flask.Flask, request: flask.Request) -> Any:
        return _NO_SESSION

    def is_null_session(self, obj: object) -> bool:
        return True


_NO_SESSION: Any = object()


class Subtree(PathConverter):
    """Whatever follows a subtree's slash: empty segments and line ends too, but no way out of it by dot segments.

    The backend may resolve `..`, and would then serve what was not routed.
    """

    regex = r"(?!(?:[\s\S]*/)?\.\.?(?:/|\Z))[\s\S]*"
    part_isolating = False


def create_app(settings: Settings, observer: Observer | None = None) -> flask.Flask:
    """The application for one set of settings: routes forwarded to the backend, health, and metrics."""
    observer = observer or Observer()
    backend = Backend(settings.backend_url, settings.pool_idle, settings.max_concurrent)
    slots = Slots(settings.max_concurrent, observer)
    app = flask.Flask("jevproxy", static_folder=None)
    app.session_interface = NoSessions()
    app.response_class = Answer
    # Werkzeug would answer a doubled slash by a redirect: a path is forwarded as it is, or is unknown.
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False
    app.url_map.converters["subtree"] = Subtree
    generates = any(route.openai for route in settings.routes)

    def forward(route: Route, timeout: float) -> Callable[..., Answer]:
        def view(**_: str) -> Answer:
            environ = flask.request.environ
            transaction: Transaction = environ[KEY]
            reply = transaction.forward(route, _target(environ), backend, slots, settings, timeout)
            return Answer(reply.status, reply.reason, reply.fields, reply.pieces)

        return view

    for route in (*settings.routes, HEALTH):
        app.add_url_rule(
            route.path.replace("*", "<subtree:rest>"),
            endpoint=f"{route.method} {route.path}",
            view_func=forward(route, settings.health_timeout if route is HEALTH else settings.timeout),
            methods=[route.method],
            provide_automatic_options=False,
        )

    @app.get("/metrics", provide_automatic_options=False)
    def metrics() -> Answer:
        flask.request.environ[KEY].record.route = "GET /metrics"
        return _own(200, CONTENT_TYPE, observer.metrics())

    @app.errorhandler(ProxyError)
    def failed(error: ProxyError) -> Answer:
        transaction: Transaction = flask.request.environ[KEY]
        transaction.record.kind = error.kind
        if isinstance(error, ClientGone):
            return Answer(error.status, "Client Gone", [], _raising(error))
        openai = transaction.route.openai if transaction.route else generates
        request_id = transaction.record.request_id
        body = error_body(error.status, error.error_type, error.message, request_id, openai)
        fields = [*error.headers(), ("X-Request-Id", request_id)]
        return _own(error.status, "application/json", body, fields, error.close)

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Answer:
        if isinstance(error, NoSuchMethod):
            return failed(MethodNotAllowed(sorted(set(error.valid_methods or ()))))
        if isinstance(error, NoSuchPath):
            return failed(NotFound())
        return broken(error)

    @app.errorhandler(Exception)
    def broken(error: Exception) -> Answer:
        app.logger.exception("request %s failed", flask.request.environ[KEY].record.request_id)
        return failed(ProxyError())

    if settings.cors_origins:
        from .cors import allow  # what needs no CORS does not load it

        methods = sorted({route.method for route in settings.routes} | {"GET", "HEAD"})
        allow(app, settings.cors_origins, methods, lambda: Answer(204, "No Content", [_date()], ()))

    serve = app.wsgi_app

    def with_transaction(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        transaction = environ[KEY] = Transaction(environ, start_response, observer)
        # No other protocol is offered (RFC 9110 section 7.8), and werkzeug would route a websocket's elsewhere.
        environ.pop("HTTP_UPGRADE", None)
        # No route depends on it, and werkzeug fails on what is no host name.
        environ["HTTP_HOST"] = "localhost"
        try:
            return serve(environ, start_response)
        except BaseException:
            # Such as a header field that gunicorn refuses to send: nobody will close the answer.
            transaction.abandon()
            raise

    app.wsgi_app = with_transaction  # type: ignore[method-assign]
    return app


def _own(
    status: int, content_type: str, body: bytes, fields: Sequence[tuple[str, str]] = (), last: bool = False
) -> Answer:
    """An answer of this program's own."""
    own = [_date(), ("Content-Type", content_type), ("Content-Length", str(len(body)))]
    return Answer(status, HTTPStatus(status).phrase, [*own, *fields], [body], last)


def _raising(error: ClientGone) -> Iterator[bytes]:
    """The pieces of an answer that nobody reads: the connection ends without a byte. The log has its status."""
    raise error
    yield b""


def _date() -> tuple[str, str]:
    return "Date", formatdate(usegmt=True)


def _target(environ: dict[str, Any]) -> str:
    """Path and query as the client wrote them: decoding and encoding them again might change them."""
    target = environ.get("RAW_URI") or ""
    if target.startswith("/"):
        return target
    if "://" in target:  # absolute-form, RFC 9112 section 3.2.2
        rest = target.partition("://")[2]
        return "/" + rest.partition("/")[2]
    query = environ.get("QUERY_STRING")
    return environ["PATH_INFO"] + (f"?{query}" if query else "")
