"""What `systemctl status` shows: what jevproxy is doing, or which setting stopped its start.

Knows sd_notify(3), through gunicorn's function for it; where no service manager listens it does nothing.
Must not know requests.
"""

import logging
import os
import sys
from typing import NoReturn

from gunicorn.systemd import sd_notify

from .settings import SettingsError

log = logging.getLogger("jevproxy")


def status(words: str) -> None:
    sd_notify(f"STATUS={words}", log)


def refuse(error: SettingsError) -> NoReturn:
    """End a start that would fail again: the unit does not try another one after this exit status."""
    print(f"jevproxy: {error}", file=sys.stderr)
    status(str(error))
    sys.exit(os.EX_CONFIG)
