"""`python -m jevproxy.compare --backend URL --frontend URL`: is what comes through the proxy what the backend says?

Sends the same requests to both and compares status, content type and body bytes. Knows a few questions of the wire
contract as bytes; must not know jevproxy's own modules, since it may stand in front of any deployment.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import requests

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


def session() -> requests.Session:
    """requests as it is, but for the environment's proxies and credentials; it retries nothing.

    Each request has a connection of its own, and asks for a body without a coding, so that bytes can be compared.
    """
    plain = requests.Session()
    plain.trust_env = False
    plain.headers.update({"Accept-Encoding": "identity", "Connection": "close"})
    return plain


def send(plain: requests.Session, url: str, case: Case, key: str | None) -> Answer:
    """One request to a deployment's root `url`. Raises requests.RequestException if there is no answer."""
    fields = {"Content-Type": "application/json"} if case.body is not None else {}
    if key:
        fields["Authorization"] = f"Bearer {key}"
    answer = plain.request(
        case.method,
        url.rstrip("/") + case.path,
        data=case.body,
        headers=fields,
        timeout=TIMEOUT,
        allow_redirects=False,
    )
    return Answer(answer.status_code, answer.headers.get("Content-Type"), answer.content)


def compare(
    backend: str, frontend: str, asked: Iterable[Case], key: str | None = None
) -> list[tuple[Case, str]]:
    """Each case with the difference that it showed, empty where there was none."""
    results = []
    with session() as plain:
        for case in asked:
            try:
                direct, proxied = send(plain, backend, case, key), send(plain, frontend, case, key)
            except requests.RequestException as error:
                results.append((case, f"no answer: {error}"))
                continue
            differing = [
                f"{field} {getattr(direct, field)!r:.80} became {getattr(proxied, field)!r:.80}"
                for field in ("status", "content_type", "body")
                if getattr(direct, field) != getattr(proxied, field)
            ]
            results.append((case, "; ".join(differing)))
    return results


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
