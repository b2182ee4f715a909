"""The Flask application: its routes, and what happens before and after each request.

It knows Flask, request ids and the line in the log. It must not know what a route does.
"""

import time
from dataclasses import replace

from flask import Flask, Response, g, request

from worker import observe
from worker.body import Intake
from worker.responses import handle_errors
from worker.server import incoming
from worker.serving import Serving
from worker.settings import Settings
from worker.views import Streamed, Views

# How much of the body of a request that is refused unread is waited for, and how long, for the connection's sake.
LEFTOVER, LEFTOVER_S = 1 << 16, 1.0


def create_app(settings: Settings, serving: Serving, metrics: observe.Metrics) -> Flask:
    """The WSGI application. It serves /health before `serving` has its catalog."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    app.extensions |= {"serving": serving, "metrics": metrics}
    for method, path, view in Views(settings, serving, metrics).routes():
        app.add_url_rule(path, path, view, methods=[method], provide_automatic_options=False)
    handle_errors(app, metrics, settings.limit_status)
    leftovers = Intake(LEFTOVER, LEFTOVER_S)

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
        _log(metrics, response)
        return response

    return app


def _log(metrics: observe.Metrics, response: Response) -> None:
    """Count the request and write its line: now, or at the end of a stream."""
    line = observe.Finished(
        g.id,
        request.method,
        request.url_rule.rule if request.url_rule else "other",
        request.path,
        response.status_code,
        response.content_length,
        g.began,
    )
    streamed: Streamed | None = g.get("streamed")
    if streamed is None:
        observe.finished(metrics, line)
    else:
        response.call_on_close(
            lambda: observe.finished(metrics, replace(line, status=streamed.status, size=streamed.size))
        )
