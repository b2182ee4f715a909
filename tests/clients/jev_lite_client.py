"""Third party: jev-lite (OpenAI-style client)."""

import jev_lite
from jev_lite import Choice, Noul, Score, TypeSafe
from smoke import *

C = TypeSafe(api_key=KEY, base_url=BASE, model=MODEL, max_retries=0)


def good():
    r = C.system_one.create(
        state=STATE,
        questions={
            "refund": Noul(instructions=Q_NOUL["instructions"], true="Asks for money back"),
            "team": Choice(instructions=Q_CHOICE["instructions"], criteria=OPTIONS),
            "anger": Score(instructions=Q_SCORE["instructions"], criteria=LEVELS),
        },
    )
    return {**r.model_dump(), "models": [m.name for m in C.models.list()]}, check_typed(r, str)


def error():
    try:
        C.system_one.create(state=STATE, questions={"q": Noul(instructions="?")}, model=BAD_MODEL)
    except jev_lite.APIStatusError as e:
        return {
            "status": e.status_code,
            "type": type(e).__name__,
            "message": e.message,
            "code": e.code,
            "request_id": e.request_id,
        }
    return {"status": 200}


run("jev-lite", pv("jev-lite"), good, error)
