"""Which pages of other origins may read the answers, if OMNI_JEV_CORS_ORIGINS names any.

Knows CORS, by flask-cors. Must not know the backend: where origins are named, its own CORS fields do not count.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from flask_cors import CORS

# Beside the fields that a page may read of any answer: ids to report, and when to come again.
EXPOSED = ("X-Request-Id", "X-Typesafe-Request-Id", "Retry-After")
# Browsers keep a preflight's answer no longer than two hours (Chromium), and 5 s without this.
MAX_AGE = 600


def allow(app: Any, origins: Sequence[str], methods: Sequence[str], preflight: Callable[[], Any]) -> None:
    """Let pages of `origins` read the answers of a Flask `app`, and answer their preflights by `preflight`.

    `*` lets any page, without credentials: cookies and HTTP authentication are for named origins alone.
    Call it when `app` has its routes.
    """
    any_page = "*" in origins
    CORS(
        app,
        resources={r"/(?!metrics\Z)[\s\S]*": {}},
        # As patterns: flask-cors would take a bare [::1] for one of its own.
        origins="*" if any_page else [re.compile(re.escape(origin) + r"\Z", re.I) for origin in origins],
        supports_credentials=not any_page,
        send_wildcard=any_page,
        methods=list(methods),
        expose_headers=EXPOSED,
        max_age=MAX_AGE,
        vary_header=False,
        intercept_exceptions=False,
    )

    @app.after_request  # called before flask-cors's, which was registered first
    def ours_alone(answer: Any) -> Any:
        for name in {name for name, _ in answer.headers if name.lower().startswith("access-control-")}:
            answer.headers.remove(name)
        if not any_page:
            answer.headers.add("Vary", "Origin")
        return answer

    taken = {rule.rule for rule in app.url_map.iter_rules() if "OPTIONS" in rule.methods}
    for path in {rule.rule for rule in app.url_map.iter_rules()} - taken - {"/metrics"}:
        app.add_url_rule(
            path,
            endpoint=f"OPTIONS {path}",
            view_func=lambda **_: preflight(),
            methods=["OPTIONS"],
            provide_automatic_options=False,
        )
