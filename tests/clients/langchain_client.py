"""Third party: langchain-typesafe TypeSafeClassifier."""

from _common import *
from langchain_typesafe import Choice, Noul, Score, TypeSafeClassifier
from langchain_typesafe.client import TypeSafeAPIError


def good():
    r = TypeSafeClassifier(api_key=KEY, base_url=BASE, model=MODEL, timeout=60).invoke(
        {
            "state": STATE,
            "questions": {
                "refund": Noul(instructions=Q_NOUL["instructions"]),
                "team": Choice(instructions=Q_CHOICE["instructions"], criteria=OPTIONS),
                "anger": Score(instructions=Q_SCORE["instructions"], criteria=LEVELS),
            },
        }
    )
    c, s = r.choices["team"], r.scores["anger"]
    return r.model_dump(), check(
        r.nouls["refund"].noul,
        c.choice,
        c.probabilities,
        s.score,
        [s.probabilities[i] for i in range(len(LEVELS))],
        c.confidence,
        s.confidence,
    )


def error():
    try:
        TypeSafeClassifier(api_key=KEY, base_url=BASE, model=BAD_MODEL).invoke(
            {"state": "x", "questions": {"q": Noul(instructions="?")}}
        )
    except TypeSafeAPIError as e:
        return {
            "status": e.status,
            "type": type(e).__name__,
            "message": str(e),
            "body": e.body,
            "request_id": e.request_id,
        }
    return {"status": 200}


run("langchain-typesafe", pv("langchain-typesafe"), good, error)
