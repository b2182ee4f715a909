"""What `make test` says at its end: nothing that failed or was left out goes unsaid."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

from tests.servers import ROOT

PASSED = "collected\n===== 7 passed, 1 skipped, 2 warnings in 3.21s (0:00:03) =====\n"
HARDWARE = "SKIPPED [1] tests/gpu/test_device.py:19: hardware: there is no CUDA device\n"
NGINX = "SKIPPED [1] tests/deploy/test_nginx.py:5: nginx is not installed\n"


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    """deploy/test as a module."""
    loader = SourceFileLoader("deploy_test", str(ROOT / "deploy" / "test"))
    spec = importlib.util.spec_from_loader("deploy_test", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["deploy_test"] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "deploy")
        loader.exec_module(module)
        yield module
    del sys.modules["deploy_test"]


@pytest.mark.parametrize(
    ("status", "text", "strict", "failed", "closing"),
    [
        (0, PASSED, True, False, "7 passed, 0 failed, 1 skipped"),
        (0, HARDWARE + PASSED, True, False, "7 passed, 0 failed, 1 skipped"),
        (0, NGINX + PASSED, False, False, "7 passed, 0 failed, 1 skipped"),
        (0, NGINX + PASSED, True, True, "7 passed, 1 failed, 1 skipped"),
        (1, "=== 2 failed, 5 passed, 1 error in 0.10s ===\n", False, True, "5 passed, 3 failed, 0 skipped"),
        (1, "interpreter crashed\n", False, True, "0 passed, 1 failed, 0 skipped"),
        (1, PASSED, False, True, "7 passed, 1 failed, 1 skipped"),
        (0, "All checks passed!\n", False, False, "1 passed, 0 failed, 0 skipped"),
        (1, "skipped because could not find python interpreter with spec(s): python3.12\n", True, False,
         "0 passed, 0 failed, 1 skipped"),
    ],
)  # fmt: skip
def test_the_closing_line(
    program: ModuleType, status: int, text: str, strict: bool, failed: bool, closing: str
) -> None:
    ran = program.of_log("newest", status, 12.0, text, strict)
    assert ran.failed is failed
    lines = program.table([ran], 3.0, 15.0).splitlines()
    assert lines[-1] == closing
    assert any(line.startswith("newest") for line in lines)
    assert ("!! failed: newest" in lines) is failed
    for skip in ran.skips:
        assert f"skipped: {skip}" in lines


def test_the_sums_are_of_all_environments(program: ModuleType) -> None:
    ran = [program.of_log("newest", 0, 1.0, PASSED, True), program.of_log("lint", 1, 1.0, "wrong\n", True)]
    assert program.table(ran, 0.0, 2.0).splitlines()[-1] == "7 passed, 1 failed, 1 skipped"
