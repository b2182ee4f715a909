"""Admission: how many exchanges run at once in this process.

Knows a count and the error for a full one. Must not know what holds a slot, or for how long.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import NoSlot
from .observe import Observer


class Slots:
    """At most `limit` exchanges at once."""

    def __init__(self, limit: int, observer: Observer) -> None:
        self._free = limit
        self._observer = observer

    def require_free(self) -> None:
        """Raises NoSlot if there is none free."""
        if self._free <= 0:
            raise NoSlot()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A slot for a block. Raises NoSlot."""
        self.require_free()
        self._free -= 1
        self._observer.admitted()
        try:
            yield
        finally:
            self._free += 1
            self._observer.released()
