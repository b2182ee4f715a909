"""A request's head while it arrives: whether it is whole, whether it is too large, what a malformed one still tells.

It knows the lines of RFC 9112 and a server's limits. It must not know sockets, servers or routes.
"""

import re
from dataclasses import dataclass

from worker.errors import FieldsTooLarge, LineTooLong

# The longest request line, and the most bytes of a whole head: gunicorn's own limits, of 100 fields of 8,190 bytes.
LINE = 8190
HEAD = 100 * (8190 + 2) + 4
# A line of a head ends in CRLF. One that ends in LF alone makes the head malformed, whatever follows (section 2.2).
BARE_LF = re.compile(rb"(?<!\r)\n")
# Where `glance` looks: what every server takes.
GLANCE = 16 << 10
# Fields that announce a body (RFC 9112 section 6).
BODY = re.compile(rb"\r\n(content-length|transfer-encoding):", re.IGNORECASE)
REQUEST_LINE = re.compile(rb"([A-Z]{3,20}) (/[!->@-~]*)(?:\?[!-~]*)? HTTP/[0-9.]+")
REQUEST_ID = re.compile(rb"x-request-id:[ \t]*([!-~]+)[ \t]*", re.IGNORECASE)


class Head:
    """The bytes of one head so far, and what followed it in the same reads."""

    __slots__ = ("_line_ended", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self._line_ended = False

    def add(self, data: bytes, limit: int = HEAD) -> bool:
        """Take more bytes. True when a parser can accept or refuse the head without another one.

        Raises LineTooLong, and FieldsTooLarge for a head that is not whole after `limit` bytes.
        """
        searched = max(0, len(self.data) - 3)
        self.data += data
        if self.data.find(b"\r\n\r\n", searched) >= 0 or BARE_LF.search(self.data, searched):
            return True
        # One empty line may come before the request line (section 2.2).
        if not self._line_ended and len(self.data) > LINE + 4:
            if self.data.find(b"\r\n", 2) < 0:
                raise LineTooLong
            self._line_ended = True
        if len(self.data) > limit:
            raise FieldsTooLarge
        return False


@dataclass(frozen=True, slots=True)
class Glance:
    """What can be told of a request that was refused before it was parsed; "-" and "" where nothing can."""

    method: str = "-"
    path: str = "-"
    request_id: str = ""


def glance(data: bytes) -> Glance:
    """Method, path and request id of a head that may be malformed or cut: of whole lines alone."""
    head = bytes(data[:GLANCE]).removeprefix(b"\r\n").partition(b"\r\n\r\n")
    lines = head[0].split(b"\r\n")
    if not head[1]:
        lines[-1] = b""
    first = REQUEST_LINE.fullmatch(lines[0])
    method, path = (part.decode("ascii") for part in first.groups()) if first else ("-", "-")
    ids = [match[1].decode("ascii") for line in lines[1:] if (match := REQUEST_ID.fullmatch(line))]
    return Glance(method, path, ids[0] if len(ids) == 1 else "")


def announces_body(data: bytes) -> bool:
    """Whether a whole head has a field that says so; also for what followed it in the same bytes."""
    return bool(BODY.search(data))
