"""`python -m jevproxy.compare --backend URL --frontend URL`: is what comes through the proxy what the backend says?

Sends the same requests to both and compares status, content type and body bytes. Knows a few questions of the wire
contract as bytes; must not know jevproxy's own modules, since it may stand in front of any deployment.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 60.0
NOUL = {"type": "noul", "instructions": "Does the buyer ask for a refund?"}
CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Payments", "technical": None},
}
SCORE = {"type": "score", "instructions": "How upset?", "criteria": ["Calm", "Annoyed", "Furious"]}


@dataclass(frozen=True, slots=True)
class Case:
    """One request: what it is called, how it is sent."""

    name: str
    method: str
    path: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What must be the same on both ways."""

    status: int
    content_type: str | None
    body: bytes


def cases(model: str) -> list[Case]:
    """One request of each kind that a decision backend is asked, good and bad."""

    def ask(name: str, **questions: Any) -> Case:
        request = {"model": model, "state": "Parcel 7731 arrived crushed.", "questions": questions}
        return Case(name, "POST", "/v1/systemone", json.dumps(request).encode())

    return [
        ask("noul", q=NOUL),
        ask("choice", q=CHOICE),
        ask("score", q=SCORE),
        ask("combined", **{"a b": NOUL, "ü.1": CHOICE, "🙂": SCORE}),
        ask("no questions"),
        ask("unknown type", q={"type": "no-such-type"}),
        Case("not JSON", "POST", "/v1/systemone", b'{"model": '),
        Case("models", "GET", "/v1/models"),
        Case("health", "GET", "/health"),
    ]


def send(url: str, case: Case, key: str | None) -> Answer:
    """One request to a deployment's root `url`. Raises OSError or http.client.HTTPException if there is no answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT)
    fields = {"Content-Type": "application/json"} if case.body is not None else {}
    if key:
        fields["Authorization"] = f"Bearer {key}"
    try:
        connection.request(case.method, parts.path.rstrip("/") + case.path, case.body, fields)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("Content-Type"), answer.read())
    finally:
        connection.close()


def compare(
    backend: str, frontend: str, requests: Iterable[Case], key: str | None = None
) -> list[tuple[Case, str]]:
    """Each case with the difference that it showed, empty where there was none."""
    found = []
    for case in requests:
        try:
            direct, proxied = send(backend, case, key), send(frontend, case, key)
        except (OSError, http.client.HTTPException) as error:
            found.append((case, f"no answer: {error}"))
            continue
        differing = [
            f"{field} {getattr(direct, field)!r:.80} became {getattr(proxied, field)!r:.80}"
            for field in ("status", "content_type", "body")
            if getattr(direct, field) != getattr(proxied, field)
        ]
        found.append((case, "; ".join(differing)))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jevproxy.compare", description="Is proxied equal to direct?"
    )
    parser.add_argument("--backend", required=True, help="the backend's root, such as http://127.0.0.1:8000")
    parser.add_argument("--frontend", required=True, help="jevproxy's root, such as http://127.0.0.1:8080")
    parser.add_argument("--model", default="jev-latest", help="the model to ask (default: %(default)s)")
    parser.add_argument("--key", help="a bearer key, if the backend wants one")
    given = parser.parse_args(arguments)
    results = compare(given.backend, given.frontend, cases(given.model), given.key)
    for case, difference in results:
        print(f"{case.name:14} {difference or 'equal'}")
    return 1 if any(difference for _, difference in results) else 0


if __name__ == "__main__":
    sys.exit(main())
