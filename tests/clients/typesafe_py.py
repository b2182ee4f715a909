"""Official Python SDK: typesafe-sdk."""

import os

from smoke import *
from typesafe_sdk import Choice, Noul, RetryPolicy, Score, TypeSafeAPIError, TypeSafeClient

C = TypeSafeClient(api_key=KEY, base_url=BASE, model=MODEL, timeout=float(os.environ.get("TIMEOUT", "30")))


def good():
    r = C.system_one(
        STATE,
        {
            "refund": Noul(instructions=Q_NOUL["instructions"], criteria=Q_NOUL["criteria"]),
            "team": Choice(instructions=Q_CHOICE["instructions"], criteria=OPTIONS),
            "anger": Score(instructions=Q_SCORE["instructions"], criteria=LEVELS),
        },
    )
    bad = check_typed(r)
    if dict(r.scores["anger"].legend) != dict(enumerate(LEVELS)):
        bad.append(f"legend {r.scores['anger'].legend!r}")
    models = [m.name for m in C.models.list().models]
    if not models:
        bad.append("GET /v1/models lists nothing")
    return {
        **r.model_dump(),
        "request_id": r.raw_http_response.headers.get("x-typesafe-request-id"),
        "models": models,
    }, bad


def error():
    try:
        C.system_one(STATE, {"q": Noul(instructions="?")}, model=BAD_MODEL, retry=RetryPolicy(max_retries=0))
    except TypeSafeAPIError as e:
        return {"status": e.status, "type": type(e).__name__, "message": str(e), "request_id": e.request_id}
    return {"status": 200}


run("typesafe-sdk", pv("typesafe-sdk"), good, error)
