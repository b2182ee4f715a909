"""What every smoke client asks, checks and prints: one request, one error case, one JSON report on stdout."""

import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")
BASE = os.environ.get("BASE_URL", "http://127.0.0.1:8080").rstrip("/")
KEY = os.environ.get("API_KEY", "sk-smoke")
MODEL = os.environ.get("MODEL", "jev-latest")
BAD_MODEL = os.environ.get("BAD_MODEL", "no-such-model-xyz")
STATE = {
    "subject": "Charged twice",
    "body": "I was billed two times for order 4411. Please refund one — today.",
}
OPTIONS = {
    "billing": "Payments, refunds, invoices",
    "technical": "Bugs and outages",
    "sales": "New purchases",
}
LEVELS = ["Calm", "Annoyed but civil", "Furious"]
Q_NOUL = {
    "type": "noul",
    "instructions": "Does the customer ask for a refund?",
    "criteria": {"true": "Asks for money back", "false": "Does not"},
}
Q_CHOICE = {"type": "choice", "instructions": "Which team should handle it?", "criteria": OPTIONS}
Q_SCORE = {"type": "score", "instructions": "How upset is the customer?", "criteria": LEVELS}
QUESTIONS = {"refund": Q_NOUL, "team": Q_CHOICE, "anger": Q_SCORE}


def check(refund, choice, cprobs, score, sprobs, cconf=None, sconf=None):
    """Problems with the decoded values (empty list = fine). sprobs: list in level order."""
    bad = []

    def p01(x):
        return isinstance(x, (int, float)) and not isinstance(x, bool) and -1e-9 <= x <= 1 + 1e-9

    if not p01(refund):
        bad.append(f"noul {refund!r}")
    if (
        set(cprobs) != set(OPTIONS)
        or not all(map(p01, cprobs.values()))
        or abs(sum(cprobs.values()) - 1) > 0.02
    ):
        bad.append(f"choice probabilities {cprobs!r}")
    if choice not in OPTIONS or cprobs.get(choice, -1) < max(cprobs.values()) - 0.006:
        bad.append(f"choice {choice!r} is not the argmax")
    if len(sprobs) != len(LEVELS) or abs(sum(sprobs) - 1) > 0.02:
        bad.append(f"score probabilities {sprobs!r}")
    elif abs(score - sum(i * p for i, p in enumerate(sprobs))) > 0.03:
        bad.append(f"score {score} is not the expectation")
    for c in (cconf, sconf):
        if c is not None and not p01(c):
            bad.append(f"confidence {c!r}")
    return bad


def check_typed(result, level=int):
    """`check` of a client's typed result; `level` makes of a level's number the key of its probability."""
    choice, score = result.choices["team"], result.scores["anger"]
    return check(
        result.nouls["refund"].noul,
        choice.choice,
        choice.probabilities,
        score.score,
        [score.probabilities[level(i)] for i in range(len(LEVELS))],
        choice.confidence,
        score.confidence,
    )


def run(name, version, good, error):
    """good() -> (payload, problems); error() -> dict with status, or raises: no error was surfaced."""
    out = {"client": name, "version": version, "base_url": BASE}
    try:
        payload, bad = good()
        out["good"] = {"ok": not bad, "problems": bad, "returned": payload}
    except BaseException as e:
        out["good"] = {"ok": False, "problems": [f"{type(e).__module__}.{type(e).__name__}: {str(e)[:400]}"]}
    try:
        r = error()
        out["error"] = {"ok": 400 <= int(r.get("status") or 0) < 500, **r}
    except BaseException as e:
        out["error"] = {"ok": False, "unexpected": f"{type(e).__module__}.{type(e).__name__}: {str(e)[:400]}"}
    print(json.dumps(out, ensure_ascii=False, default=str, indent=None if os.environ.get("COMPACT") else 1))
    sys.exit(0 if out["good"]["ok"] and out["error"]["ok"] else 1)


def pv(dist):
    from importlib.metadata import version

    return version(dist)
