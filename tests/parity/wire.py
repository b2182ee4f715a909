"""An answer as it is compared: its status, the fields that matter, its body, and what came behind it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

from tests.callers import Caller
from tests.messages import Reply

# Written anew on each hop, or the server's own. What Content-Length said is compared as the body's length.
PER_HOP = {
    "connection",
    "date",
    "server",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "x-request-id",
}


@dataclass(frozen=True)
class Answer:
    """A final response: its status line after the version, the fields that matter by name, the decoded body.

    `cut` is true where the framing promised more than came. `surplus` came behind the response. Where no response
    came, `status` is "" and `surplus` is what came in its place.
    """

    status: str
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut: bool = False
    surplus: bytes = b""

    @property
    def code(self) -> int:
        return int(self.status[:3] or 0)

    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, raw: bytes) -> Answer:
    """What comes back for `raw` until the server closes, or resets."""
    with Caller(url) as caller:
        with contextlib.suppress(OSError):  # refused early: the answer says so
            caller.send(raw)
        try:
            reply = caller.reply(raw.lstrip().split(b" ", 1)[0].decode("latin-1"))
        except ConnectionError:
            return Answer("", surplus=caller.rest())
        return _compared(reply, caller.rest())


def _compared(reply: Reply, surplus: bytes) -> Answer:
    fields = ((name.lower(), value) for name, value in reply.fields)
    # The order of fields counts among those of one name alone (RFC 9110 section 5.3).
    kept = tuple(sorted((pair for pair in fields if pair[0] not in PER_HOP), key=lambda pair: pair[0]))
    return Answer(f"{reply.status} {reply.reason}", kept, reply.body, not reply.whole, surplus)
