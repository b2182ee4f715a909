"""What systemd is told about this process: sd_notify(3), a datagram of `NAME=value` lines to NOTIFY_SOCKET.

It knows the protocol and how a start that failed is reported. It must not know what is being loaded or served.
"""

import logging
import socket
import sys

from worker.errors import StartFailed, words
from worker.settings import notify_socket

log = logging.getLogger("worker")

# systemd reads at once; a manager that does not may not hold up a start.
PATIENCE_S = 1.0


def status(text: str, *more: str) -> None:
    """Show `text` in `systemctl status`; `more` are further lines. Does nothing where no manager listens."""
    address = notify_socket()
    if not address:
        return
    # An address that begins with @ is in Linux's abstract namespace, where the first byte is zero.
    name = "\0" + address[1:] if address.startswith("@") else address
    message = "\n".join((*more, f"STATUS={words(text)}"))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(PATIENCE_S)
            sock.sendto(message.encode(), name)
    except OSError as error:
        log.debug("NOTIFY_SOCKET cannot be reached: %s", error)


def ready(text: str) -> None:
    """The models are warm: systemd counts a unit of Type=notify as started now."""
    status(text, "READY=1")


def failed(reason: StartFailed) -> None:
    """Tell the operator, on stderr and in `systemctl status`, why the worker cannot start."""
    print(f"jevworker: {reason}", file=sys.stderr, flush=True)
    status(str(reason))
