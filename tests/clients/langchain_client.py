"""Third party: langchain-typesafe TypeSafeClassifier."""

from langchain_typesafe import Choice, Noul, Score, TypeSafeClassifier
from langchain_typesafe.client import TypeSafeAPIError
from smoke import *


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
    return r.model_dump(), check_typed(r)


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
