"""The backend, through requests: one Session without a memory, whose only adapter hands over to our transport.

Alone knows requests. Must not know Flask, the routes or the client.

requests gives the Session: what calls the adapter, hooks and all. urllib3 gives the pool, connecting and TLS
(`connections`). Sending and reading are ours (`transport`, `response`): requests and urllib3 keep header fields in maps
that hold a repeated name once, decode bodies, and read a response's head less strictly.
"""

from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter

from .body import RequestBody
from .headers import Fields
from .transport import Outgoing, Received, Transport

# Health, models and the playground are outside admission: room for theirs beside the admitted exchanges' connections.
SPARE_CONNECTIONS = 64


class ForwardedRequest(requests.PreparedRequest):
    """What the Session is given. `outgoing` is what is sent; the fields of requests' own say only where to."""

    def __init__(self, url: str, outgoing: Outgoing) -> None:
        super().__init__()
        self.method = outgoing.method
        self.url = url
        self.outgoing = outgoing


class ForwardedResponse(requests.Response):
    """What the Session gives back. `received` is the response; requests reads nothing of it.

    requests' own __init__ is left out: it makes a cookie jar and a header map, which nobody reads. What is set here is
    what Session.send touches of a response whose body it does not read.
    """

    def __init__(self, request: ForwardedRequest, received: Received) -> None:
        self.history: list[requests.Response] = []
        self.request = request
        self.url = request.url
        self.status_code = received.status
        self.reason = received.reason
        self.raw = self.received = received


class TransportAdapter(BaseAdapter):
    """requests' adapter for one backend."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> ForwardedResponse:
        """Send a ForwardedRequest; one attempt. Raises what `Transport.exchange` raises."""
        if not isinstance(request, ForwardedRequest):
            raise TypeError("a ForwardedRequest is needed")
        return ForwardedResponse(request, self._transport.exchange(request.outgoing))

    def close(self) -> None:
        self._transport.close()


class StatelessSession(requests.Session):
    """A Session without a memory: nothing from the environment, no cookies kept, no redirect followed."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.headers.clear()
        self.adapters.clear()

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None, always: redirects are relayed to the client, which may follow them."""


class Backend:
    """The one backend. `exchange` is safe to call from any number of greenlets."""

    def __init__(self, url: str, pool_idle: float, max_concurrent: int) -> None:
        parts = urlsplit(url)
        self._prefix = parts.path
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._session = StatelessSession()
        transport = Transport(self._root, pool_idle, max_concurrent + SPARE_CONNECTIONS)
        self._session.mount(self._root, TransportAdapter(transport))

    def exchange(self, method: str, target: str, fields: Fields, body: RequestBody | None) -> Received:
        """Send one request to `target` (path and query, as the client wrote them), and read the response's head.

        `fields` as `headers.to_backend` gives them. Raises what `Transport.exchange` raises.
        """
        outgoing = Outgoing(method, self._prefix + target, [("Host", self._host), *fields], body)
        request = ForwardedRequest(self._root + outgoing.target, outgoing)
        response = self._session.send(
            request, stream=True, allow_redirects=False, proxies={}, verify=True, cert=None
        )
        return response.received
