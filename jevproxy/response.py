"""One HTTP/1.1 response read off a backend's socket: its head, its framing, and its body as it arrives.

Knows RFC 9112, strictly: what it cannot be sure of is refused, since a response misread here would be a wrong answer
told as a right one. Must not know how the socket came about, nor what the response is for.
"""

import re
from typing import Any

from .errors import BackendBroken
from .headers import Fields

# A read of this size keeps a process flat under large answers, and costs one system call per 64 KiB.
PIECE = 64 * 1024
# What http.client and nginx take at most is of the same order; a decision's head has some hundred bytes.
HEAD_LIMIT = 256 * 1024
LINE_LIMIT = 16 * 1024

# RFC 9112 section 2.2: a recipient may take a line feed alone as a line's end. A carriage return alone ends nothing,
# and is no part of any element either.
_LINE_END = re.compile(r"\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
# RFC 9110 section 5.5 and 5.6.2: no space before the colon; visible characters, space, tab and obs-text.
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_FOLDED = re.compile(r"[ \t]+([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_BODILESS = (204, 304)


class ResponseReader:
    """The final response to one request; interim ones (1xx) are passed over.

    `status`, `reason` and `fields` (in order, repeated ones included) are its head. `length` is the body's bytes, None
    where chunks or the connection's end delimit it. `finished` says that the body was read whole, `reusable` that the
    connection then carries another exchange. Raises BackendBroken: `closed` if not a byte came, `cut` if the connection
    ended too early, `protocol` for what is not HTTP.
    """

    def __init__(self, sock: Any, method: str) -> None:
        self._sock = sock
        self._buffer = b""
        self._at = 0
        self._chunk_left = 0
        self._after_chunk = False
        self.finished = False
        while True:
            self._read_head()
            if self.status >= 200:
                break
            if self.status == 101:  # nobody asked for another protocol
                raise BackendBroken("protocol")
        self._frame(method)

    @property
    def reusable(self) -> bool:
        # What follows the response belongs to no request: the next exchange would read it as its answer.
        return self.finished and self._persistent and self._at == len(self._buffer)

    def read_some(self) -> bytes:
        """The next bytes of the body as they arrive, empty at its end."""
        if self.finished:
            return b""
        if self._chunked:
            return self._chunk_piece()
        if self.length is None:
            piece = self._take(PIECE) or self._receive()
            self.finished = not piece
            return piece
        piece = self._take(self._left) or self._receive(min(self._left, PIECE))
        if not piece:
            raise BackendBroken("cut")
        self._left -= len(piece)
        self.finished = not self._left
        return piece

    def _frame(self, method: str) -> None:
        """Where the body ends: RFC 9112 section 6.3."""
        codings = self._values("transfer-encoding")
        lengths = self._values("content-length")
        # No coding was offered, so there is none but chunked; and no two lengths, even equal ones, are taken.
        if codings and [coding.lower() for coding in codings] != ["chunked"]:
            raise BackendBroken("protocol")
        if lengths and (len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0])):
            raise BackendBroken("protocol")
        options = {
            option.strip().lower() for value in self._values("connection") for option in value.split(",")
        }
        self._persistent = "close" not in options and (self._minor > 0 or "keep-alive" in options)
        self._chunked = bool(codings)
        self.length = None if codings or not lengths else int(lengths[0])
        if codings and (lengths or not self._minor):  # section 6.1: take the chunks, then trust nothing more
            self._persistent = False
        if method == "HEAD" or self.status in _BODILESS:
            if self.status == 204 and (
                codings or self.length
            ):  # section 6.1: a body that must not be may still come
                self._persistent = False
            self._chunked, self.length = False, 0
        elif not codings and not lengths:
            self._persistent = False
        self._left = self.length or 0
        self.finished = self.length == 0

    def _values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name]

    def _read_head(self) -> None:
        searched = self._at
        while not (end := _HEAD_END.search(self._buffer, searched)):
            if len(self._buffer) - self._at > HEAD_LIMIT:
                raise BackendBroken("protocol")
            searched = max(0, len(self._buffer) - self._at - 3)
            self._fill("closed" if not self._buffer else "cut")
        if end.end() - self._at > HEAD_LIMIT:  # however large the pieces were in which it came
            raise BackendBroken("protocol")
        head = self._buffer[self._at : end.start()].decode("latin-1")
        self._at = end.end()
        first, *lines = _LINE_END.split(head)
        status_line = _STATUS_LINE.fullmatch(first)
        if not status_line:
            raise BackendBroken("protocol")
        self._minor = int(status_line[1])
        self.status = int(status_line[2])
        self.reason = status_line[3] or ""
        self.fields: Fields = []
        for line in lines:
            if field := _FIELD.fullmatch(line):
                self.fields.append((field[1], field[2].rstrip(" \t")))
            elif self.fields and (folded := _FOLDED.fullmatch(line)):
                # Section 5.2: a proxy replaces an obsolete line folding by a space before it forwards.
                name, value = self.fields[-1]
                self.fields[-1] = (name, f"{value} {folded[1]}".rstrip(" \t"))
            else:
                raise BackendBroken("protocol")

    def _chunk_piece(self) -> bytes:
        """Section 7.1. The line end after a chunk is read with the next chunk's size, so that no piece waits for it."""
        if not self._chunk_left:
            if self._after_chunk and self._line():
                raise BackendBroken("protocol")
            size = _CHUNK_SIZE.fullmatch(self._line())
            if not size:
                raise BackendBroken("protocol")
            self._chunk_left = int(size[1], 16)
            self._after_chunk = True
            if not self._chunk_left:
                self._skip_trailers()
                return b""
        piece = self._take(self._chunk_left) or self._receive(min(self._chunk_left, PIECE))
        if not piece:
            raise BackendBroken("cut")
        self._chunk_left -= len(piece)
        return piece

    def _skip_trailers(self) -> None:
        """Section 7.1.2: who does not know trailer fields may drop them."""
        size = 0
        while line := self._line():
            size += len(line)
            if size > HEAD_LIMIT:
                raise BackendBroken("protocol")
        self.finished = True

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n", self._at)) < 0:
            if len(self._buffer) - self._at > LINE_LIMIT:
                raise BackendBroken("protocol")
            self._fill("cut")
        line = self._buffer[self._at : end].removesuffix(b"\r")
        self._at = end + 1
        if b"\r" in line:
            raise BackendBroken("protocol")
        return line

    def _take(self, most: int) -> bytes:
        """What waits in the buffer, up to so many bytes."""
        piece = self._buffer[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def _fill(self, otherwise: str) -> None:
        """More into the buffer, or BackendBroken of this kind."""
        more = self._receive(PIECE, otherwise)
        if not more:
            raise BackendBroken(otherwise)
        self._buffer = self._buffer[self._at :] + more
        self._at = 0

    def _receive(self, most: int = PIECE, otherwise: str = "cut") -> bytes:
        try:
            return self._sock.recv(most)
        except OSError as error:  # a reset, or TLS that ended without saying so
            raise BackendBroken(otherwise) from error
