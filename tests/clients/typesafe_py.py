"""Official Python SDK: typesafe-sdk."""

import os

from _common import *
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
    c, s = r.choices["team"], r.scores["anger"]
    bad = check(
        r.nouls["refund"].noul,
        c.choice,
        c.probabilities,
        s.score,
        [s.probabilities[i] for i in range(len(LEVELS))],
        c.confidence,
        s.confidence,
    )
    if dict(s.legend) != dict(enumerate(LEVELS)):
        bad.append(f"legend {s.legend!r}")
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
