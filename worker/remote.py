"""A running deployment, asked through plain requests: one decision an exchange, as the System One contract has it.

It knows HTTP statuses, and which of them say that the same request may be sent again. It must not know files,
models or how many ask at once.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import requests

from worker.encoding import encode
from worker.errors import StartFailed

# Seconds: to connect, and for each read of the answer. Longer than jevproxy's own 60 for a whole exchange.
TIMEOUT = (5.0, 90.0)
# The statuses that tell a client when to come again, if Retry-After stands beside them.
AGAIN = (429, 503, 529)
# After so many seconds of such answers to one request the deployment counts as down.
PATIENCE_S = 120.0
# What is wrong with the request itself, so that the next one may well be answered.
REQUEST_REFUSED = (400, 413, 422)


class DeploymentRefused(StartFailed):
    """The deployment answers no request of ours: a wrong URL, key or kind of server."""


class DeploymentFailed(Exception):
    """One exchange failed on the deployment's side. `status` is its answer's, None if there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RequestRefused(Exception):
    """The deployment refused this request for what it is: its status, and the contract's `detail`."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(status)
        self.status = status
        self.detail = detail


class Deployment:
    """A deployment's root URL and key. Safe for many threads, each of which has a connection of its own."""

    def __init__(self, url: str, key: str | None, pause: Callable[[float], object] = time.sleep) -> None:
        """`pause` waits for so many seconds, or less when somebody wants to stop."""
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._pause = pause
        self._own = threading.local()

    def decide(self, document: dict[str, Any]) -> dict[str, Any]:
        """The answer to a System One request: its model, answers and usage.

        Raises RequestRefused, DeploymentFailed or DeploymentRefused. Sends again only after an answer that says
        when to: one of `AGAIN` with Retry-After.
        """
        body = encode(document)
        began = time.monotonic()
        while True:
            answer = self._post(body)
            if answer.status_code not in AGAIN or "Retry-After" not in answer.headers:
                return self._read(answer, document)
            if time.monotonic() - began > PATIENCE_S:
                raise DeploymentFailed(f"it had no room for {PATIENCE_S:g} seconds", answer.status_code)
            self._pause(_seconds(answer.headers["Retry-After"]))

    def _post(self, body: bytes) -> requests.Response:
        session = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = requests.Session()
            session.trust_env = False
        try:
            return session.post(
                f"{self._url}/v1/systemone",
                data=body,
                headers=self._headers,
                timeout=TIMEOUT,
                allow_redirects=False,
            )
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
        ):
            raise DeploymentRefused(f"{self._url} is no http or https URL") from None
        except requests.RequestException as error:
            raise DeploymentFailed(f"no answer: {type(error).__name__}") from error

    def _read(self, answer: requests.Response, document: dict[str, Any]) -> dict[str, Any]:
        status = answer.status_code
        try:
            found = answer.json()
        except requests.exceptions.JSONDecodeError:
            found = None
        if status == 200:
            answers = found.get("answers") if isinstance(found, dict) else None
            if not isinstance(answers, dict) or list(answers) != list(document["questions"]):
                raise DeploymentRefused(f"{self._url} does not answer as a System One deployment does")
            return {name: found[name] for name in ("model", "answers", "usage") if name in found}
        detail = found["detail"] if isinstance(found, dict) and "detail" in found else answer.reason
        if status in REQUEST_REFUSED:
            raise RequestRefused(status, detail)
        if status >= 500:
            raise DeploymentFailed(f"it answered {status}", status)
        words = {401: "the key is wrong", 403: "a key is needed"}.get(
            status, "is it a System One deployment?"
        )
        raise DeploymentRefused(f"{self._url} answered {status}: {words}")


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds, within 0 to 60; 1 for a date, which the contract does not use."""
    return min(60.0, float(retry_after)) if retry_after.isdecimal() else 1.0
