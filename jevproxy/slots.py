"""Admission: how many exchanges run at once in this process.

Knows a count and the error for a full one. Must not know what holds a slot, or for how long.
"""

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

    def take(self) -> None:
        """Raises NoSlot if there is none free."""
        self.require_free()
        self._free -= 1
        self._observer.admitted()

    def give_back(self) -> None:
        self._free += 1
        self._observer.released()
