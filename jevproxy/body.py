"""The request body, piece by piece while it arrives from the client.

Knows framing as the WSGI server gives it, the size limit, and a body that was cut short. Must not know the backend.
"""

from collections.abc import Callable, Iterator
from typing import Any

from gunicorn.http.errors import ParseException

from .errors import BadRequest, BodyTooLarge, ClientGone, DeadlineExceeded, Interrupted, RequestTimeout

# A read of this size keeps a process flat under a 100 MB upload, and costs about one system call per 64 KiB.
PIECE = 64 * 1024


class RequestBody:
    """A request body of a known length, or in chunks (`length` None).

    Iterating gives non-empty pieces as they arrive; never more than `limit` bytes. Raises BodyTooLarge over the
    limit, ClientGone when the client's connection ends before the body does, BadRequest for malformed chunks,
    RequestTimeout when the exchange's deadline passes while a piece is awaited. `complete` is true once the last
    byte was given, and `on_complete` was called then; `received` counts bytes.
    """

    def __init__(
        self, stream: Any, length: int | None, limit: int, on_complete: Callable[[], None] | None = None
    ) -> None:
        if length is not None and length > limit:
            raise BodyTooLarge(limit)
        self._stream = stream
        self.length = length
        self.limit = limit
        self.received = 0
        self.complete = False
        self._on_complete = on_complete
        self._given = self._give()
        self._held = b""

    def wait(self) -> None:
        """Wait for the first piece, which iterating then gives."""
        self._held = next(self._given, b"")

    def __iter__(self) -> Iterator[bytes]:
        held, self._held = self._held, b""
        if held:
            yield held
        yield from self._given

    def _give(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces():
                self.received += len(piece)
                if self.received > self.limit:
                    raise BodyTooLarge(self.limit)
                if self.received == self.length:
                    self._completed()
                yield piece
        except DeadlineExceeded:
            raise RequestTimeout() from None
        except Interrupted:
            raise
        except ParseException:
            raise BadRequest("The request body's chunks are not well-formed.") from None
        except OSError:  # a reset connection, or gunicorn's NoMoreData
            raise ClientGone() from None
        if self.length is not None and self.received < self.length:
            raise ClientGone()
        self._completed()

    def _completed(self) -> None:
        if not self.complete:
            self.complete = True
            if self._on_complete:
                self._on_complete()

    def _pieces(self) -> Iterator[bytes]:
        """Pieces as the socket gives them.

        gunicorn's own Body.read(n) waits for all n bytes, which would hold back a body that is still arriving;
        below it, its chunk parser and its socket reader give what is there.
        """
        reader: Any = getattr(self._stream, "reader", None)
        if self.length is None and hasattr(reader, "parser"):
            yield from filter(None, reader.parser or ())
            reader.parser = None
        elif self.length is not None and hasattr(reader, "unreader"):
            while reader.length:
                piece = reader.unreader.read(None, read_ahead=min(reader.length, PIECE))
                if not piece:
                    return
                if len(piece) > reader.length:  # what follows belongs to the next request
                    reader.unreader.unread(piece[reader.length :])
                    piece = piece[: reader.length]
                reader.length -= len(piece)
                yield piece
        else:  # any other WSGI server
            while piece := self._stream.read(PIECE):
                yield piece
