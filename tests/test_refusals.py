"""What each package has for itself, and must not drift apart: what gunicorn refuses, the raw answer, the fork hooks.

jevproxy and the worker share no code, so this holds their copies equal.
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from typing import Any

import gunicorn.http.errors
import pytest

from tests.servers import ROOT, clean_environment

# A gunicorn exception's class: the status and the error_type that a client is told. Others have their base class's.
TABLE = {
    "LimitRequestLine": (414, "invalid_request"),
    "LimitRequestHeaders": (431, "invalid_request"),
    "ExpectationFailed": (417, "invalid_request"),
    "ParseException": (400, "invalid_request"),
    "BaseException": (500, "internal_error"),
}
MODULES: dict[str, Any] = {
    name: importlib.import_module(f"{name}.refusals") for name in ("jevproxy", "worker")
}
PARSING = [
    kind
    for _, kind in inspect.getmembers(gunicorn.http.errors, inspect.isclass)
    if issubclass(kind, gunicorn.http.errors.ParseException)
]


def raised(kind: type[BaseException]) -> BaseException:
    """An exception of a class, however it is made: its type is all that counts here."""
    return kind.__new__(kind)


@pytest.mark.parametrize("package", MODULES)
def test_the_tables_are_the_same(package: str) -> None:
    assert MODULES[package].REFUSALS == TABLE


@pytest.mark.parametrize("package", MODULES)
@pytest.mark.parametrize("kind", [*PARSING, RuntimeError], ids=lambda kind: kind.__name__)
def test_the_raw_answer_to_each_refusal_is_the_same(package: str, kind: type[BaseException]) -> None:
    row = next(TABLE[base.__name__] for base in kind.__mro__ if base.__name__ in TABLE)
    module = MODULES[package]
    head, body = module.response(module.refusal(raised(kind)), "the-id")
    first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    fields.pop("x-typesafe-request-id", None)  # the worker's own
    assert first.startswith(f"HTTP/1.1 {row[0]} ")
    assert fields == {
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": "the-id",
    }
    detail = json.loads(body)["detail"]
    assert detail["error_type"] == row[1] and detail["message"]
    if row[0] < 500:
        assert detail["message"] == MODULES["jevproxy"].refusal(raised(kind)).message


HOOKS = """
import json, signal, sys
from {package} import gunicorn_conf as conf
handlers = lambda: [signal.getsignal(number) is signal.SIG_DFL for number in (2, 3, 15)]
for number in (2, 3, 15):
    signal.signal(number, lambda *_: None)
states = []
for hook in (conf.pre_fork, conf.post_fork):
    hook(None, None)
    states.append((sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), handlers()))
print(json.dumps(states))
"""


@pytest.mark.parametrize("package", MODULES)
def test_the_fork_hooks_hold_the_same_signals_and_let_them_go(package: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", HOOKS.format(package=package)],
        cwd=ROOT, env=clean_environment({}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = json.loads(run.stdout.splitlines()[-1])
    assert before == [[2, 3, 15], [False] * 3], "a signal waits, and the handlers are still the arbiter's"
    assert after == [[], [True] * 3], "then it ends the new process"
