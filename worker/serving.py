"""What this process can do now: nothing until its models are loaded, nothing more once its device has failed.

It knows the states of a process's life. It must not know how models are loaded, nor HTTP.
"""

import threading
from collections.abc import Callable

from worker.catalog import Catalog
from worker.errors import DeviceFailed, Loading


class Serving:
    """Loading, then ready, then perhaps failed: one process's life, told to every thread."""

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def begin(self, catalog: Catalog) -> None:
        """The models are loaded and warm. What waits for it is called first, before a request can see them."""
        with self._lock:
            for act in self._waiting:
                act()
            self._waiting.clear()
            self._catalog = catalog

    def fail(self) -> None:
        """The device is lost, for good."""
        self._failed = True

    def when_ready(self, act: Callable[[], None]) -> None:
        """Call `act` when the models are warm; at once if they are."""
        with self._lock:
            if self._catalog is None:
                self._waiting.append(act)
            else:
                act()

    def is_ready(self) -> bool:
        """Decisions can be made."""
        return self._catalog is not None and not self._failed

    def ready(self) -> Catalog:
        """The catalog; raises Loading or DeviceFailed."""
        if self._failed:
            raise DeviceFailed
        if self._catalog is None:
            raise Loading("The models are being loaded.")
        return self._catalog
