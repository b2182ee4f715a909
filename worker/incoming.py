"""One request as it arrives: what its framing says, its body, and whether its client is still there.

It knows sockets. It must not know the server that accepted the connection, nor what the body means.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request after its head.

    `read(n)` gives up to n bytes of the body without its transfer coding, and b"" at its end or where the client
    stopped; it raises OSError for a connection that failed and BodyIncomplete for chunks that are malformed.
    `length` is the declared one, `codings` the Content-Encoding field. `sock` is None where nobody tells.
    """

    read: Callable[[int], bytes]
    length: int | None = None
    chunked: bool = False
    codings: str = ""
    sock: socket.socket | None = None

    @property
    def has_body(self) -> bool:
        """The head announced one."""
        return self.chunked or bool(self.length)

    def client_is_there(self) -> bool:
        """By a look at the socket. A client that has shut its writing side counts as gone."""
        if self.sock is None:
            return True
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
