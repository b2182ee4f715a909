"""A deployment that decides every state alike: a script for the scripted backend, and counts of what it was asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.backends import Exchange, Scripted, scripted
from tests.messages import response

ANSWERS = {"q": {"type": "noul", "noul": 0.75}}
USAGE = {"input_tokens": 9, "output_tokens": 0}

Reply = tuple[int, dict[str, str], Any]


def decided(document: dict[str, Any]) -> Reply:
    """The answer of a deployment that is well."""
    return 200, {}, {"model": "m@1", "answers": ANSWERS, "usage": USAGE}


@dataclass
class Deployment:
    """A running one. `asked` counts its requests by state."""

    backend: Scripted

    @property
    def url(self) -> str:
        return self.backend.url

    @property
    def asked(self) -> Counter[str]:
        whole = [seen for seen in list(self.backend.seen) if seen.whole]
        return Counter(json.dumps(json.loads(seen.body)["state"]) for seen in whole)


@contextmanager
def deployment(replies: Callable[[dict[str, Any]], Reply] = decided) -> Iterator[Deployment]:
    """`replies` gives each request's status, fields and document."""

    def script(exchange: Exchange) -> None:
        status, fields, document = replies(json.loads(exchange.body))
        named = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        exchange.send(response(json.dumps(document).encode(), named.encode(), f"{status} Said".encode()))

    with scripted(script) as backend:
        yield Deployment(backend)
