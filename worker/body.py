"""A request's body: read within its time and size, and decoded from the encodings that SDKs send.

It knows deadlines and content codings. It must not know JSON, what a body means, or the server that reads it.
"""

import gzip
import io
import socket
import threading
import time
import zlib
from collections import deque

import zstandard

from worker.errors import BodyIncomplete, BodyLate, BodyTooLarge, ClientGone, CodingRefused, words
from worker.incoming import Incoming

STEP = 1 << 16
# What is read and thrown away of a body over the limit, in limits: a client that is still writing when the
# connection closes would get a reset in place of its 413.
DISCARDED = 8
# RFC 8878 section 3.1.1.1.2 recommends 8 MiB as what every decoder supports; a frame may ask for gigabytes.
ZSTD_WINDOW = 1 << 23
# A block of 4 bytes may stand for 128 KiB (section 3.1.1.2), so this many bytes for at most 4 MiB.
ZSTD_STEP = 128
CODINGS = "gzip, zstd"


class Deadline:
    """One body's time. When it is over, the socket's reading side is shut, which ends a read that waits."""

    def __init__(self, sock: socket.socket | None, seconds: float) -> None:
        self.due = time.monotonic() + seconds
        self.passed = False
        self._sock = sock
        self._lock = threading.Lock()

    def expire(self) -> None:
        """The time is over; nothing happens if the body came before."""
        with self._lock:
            if self._sock is not None:
                self.passed = True
                try:
                    self._sock.shutdown(socket.SHUT_RD)
                except OSError:
                    pass  # already closed: the read has ended too

    def lift(self) -> None:
        """The body came, or was given up."""
        with self._lock:
            self._sock = None


class Intake:
    """Reads bodies of at most `limit` bytes, as sent and as decoded, that arrive within `seconds`.

    A socket's own timeout is for each read, so a byte every few seconds would pass it; one thread watches all
    bodies instead. All have the same time, so the first to begin is the first due.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit
        self.seconds = seconds
        self._deadlines: deque[Deadline] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def read(self, incoming: Incoming) -> bytes:
        """The decoded body.

        Raises BodyTooLarge, BodyLate, BodyIncomplete, CodingRefused, or ClientGone when no one listens.
        """
        deadline = self._deadline(incoming.sock)
        try:
            sent = self._sent(incoming)
        except (OSError, BodyIncomplete) as error:
            if deadline.passed:
                raise self._late() from None
            if isinstance(error, ConnectionError):
                raise ClientGone from None
            raise BodyIncomplete("The request body was cut short or badly framed.") from None
        finally:
            deadline.lift()
        if deadline.passed:
            raise self._late()
        if incoming.length is not None and len(sent) < incoming.length:
            raise BodyIncomplete(
                f"The request body was cut short: {len(sent)} of {incoming.length} bytes came."
            )
        return decoded(sent, incoming.codings, self.limit)

    def discard(self, incoming: Incoming) -> None:
        """Read what a request that is refused unread has sent, within the limits.

        What stays on a connection would be taken for the next request's head, or cost the client its answer.
        """
        deadline = self._deadline(incoming.sock)
        try:
            self._sent(incoming)
        except (OSError, BodyIncomplete, BodyTooLarge):
            pass  # the connection ends with the answer
        finally:
            deadline.lift()

    def _late(self) -> BodyLate:
        return BodyLate(f"The request body did not arrive within {self.seconds:g} seconds.")

    def _sent(self, incoming: Incoming) -> bytes:
        parts, size = [], 0
        while chunk := incoming.read(STEP):
            size += len(chunk)
            if size <= self.limit:
                parts.append(chunk)
            elif size > self.limit * DISCARDED:
                break
        if size > self.limit:
            raise _too_large(self.limit)
        return b"".join(parts)

    def _deadline(self, sock: socket.socket | None) -> Deadline:
        deadline = Deadline(sock, self.seconds)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._expire_due, name="body-deadlines", daemon=True)
                self._thread.start()
            self._deadlines.append(deadline)
            self._changed.notify()
        return deadline

    def _expire_due(self) -> None:
        while True:
            with self._changed:
                while not self._deadlines:
                    self._changed.wait()
                deadline = self._deadlines[0]
            time.sleep(max(0.0, deadline.due - time.monotonic()))
            deadline.expire()
            self._deadlines.popleft()


def decoded(sent: bytes, codings: str, limit: int) -> bytes:
    """`sent` without its content codings, the last applied taken off first (RFC 9110 section 8.4)."""
    for coding in reversed([part.strip().lower() for part in codings.split(",") if part.strip()]):
        try:
            if coding in ("gzip", "x-gzip"):
                sent = _whole(gzip.GzipFile(fileobj=io.BytesIO(sent)).read(limit + 1), limit)
            elif coding == "zstd":
                sent = _unzstd(sent, limit)
            elif coding != "identity":
                raise CodingRefused(
                    f"Content-Encoding '{words(coding, 40)}' is not read here; {CODINGS} are."
                )
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError):
            raise BodyIncomplete(f"The request body is not whole {coding}.") from None
    return sent


def _unzstd(sent: bytes, limit: int) -> bytes:
    """The content of zstd frames; EOFError if the last one does not end, its checksum included."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame, parts, size = decompressor.decompressobj(), [], 0
    for low in range(0, len(sent), ZSTD_STEP):
        rest = sent[low : low + ZSTD_STEP]
        while rest:
            if frame.eof:
                frame = decompressor.decompressobj()
            parts.append(frame.decompress(rest))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            rest = frame.unused_data if frame.eof else b""
    if sent and not frame.eof:
        raise EOFError
    return b"".join(parts)


def _whole(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _too_large(limit)
    return data


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is over the limit of {limit} bytes.")
