"""The request body, piece by piece while it arrives from the client.

Knows the size limit, the deadline, and where a body is complete. Must not know the server or the backend.
"""

from collections.abc import Callable, Iterator

from .errors import BodyTooLarge, DeadlineExceeded, RequestTimeout


class RequestBody:
    """A request body of a known length, or in chunks (`length` None), read by `read_some` (`Incoming`'s).

    Iterating gives non-empty pieces as they arrive; never more than `limit` bytes. Raises BodyTooLarge over the
    limit, RequestTimeout when the exchange's deadline passes while a piece is awaited, and what `read_some` raises.
    `complete` is true once the last byte was given, and `on_complete` was called then; `received` counts bytes.
    """

    def __init__(self, read_some: Callable[[], bytes], length: int | None, limit: int) -> None:
        if length is not None and length > limit:
            raise BodyTooLarge(limit)
        self._read_some = read_some
        self.length = length
        self.limit = limit
        self.received = 0
        self.complete = False
        self.on_complete: Callable[[], None] = lambda: None
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
            while piece := self._read_some():
                self.received += len(piece)
                if self.received > self.limit:
                    raise BodyTooLarge(self.limit)
                if self.received == self.length:
                    self._completed()
                yield piece
        except DeadlineExceeded:
            raise RequestTimeout() from None
        self._completed()

    def _completed(self) -> None:
        if not self.complete:
            self.complete = True
            self.on_complete()
