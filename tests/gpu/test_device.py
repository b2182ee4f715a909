"""The device script, where there is a device; elsewhere that it says so, and that its checks notice a wrong bucket."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest
import torch

from tests.checkpoints import write
from tests.gpu.device import in_process, verify
from tests.worker.test_engine import Rerun
from worker import checkpoint
from worker.buckets import Buckets
from worker.engine import Engine


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="hardware: there is no CUDA device")
def test_the_device_script() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.gpu.device", "--size", "base", "--seconds", "2"],
        timeout=480,
        check=False,
    )
    assert ran.returncode == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="hardware: there is a CUDA device")
def test_without_a_device_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["device"])
    monkeypatch.delitem(sys.modules, "tests.gpu.device")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tests.gpu.device", run_name="__main__")
    assert ended.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine]:
    """A captured engine and its eager twin, both on the CPU."""
    loaded = checkpoint.load(str(write(tmp_path_factory.mktemp("tiny"), max_len=64)), "cpu", "fp32")
    buckets = Buckets(lengths=(8, 16), counts=(1, 2))
    return Engine(loaded, buckets=buckets, capturer=Rerun()), Engine(loaded)


def test_the_checks_pass_where_all_is_well(engines: tuple[Engine, Engine]) -> None:
    captured, twin = engines
    (line,) = verify(captured, twin, 1e-4)
    assert ", 0, " in line
    assert "engine alone" in next(in_process(captured, "stand-in"))


def test_the_checks_notice_a_wrong_bucket(engines: tuple[Engine, Engine]) -> None:
    captured, twin = engines
    assert captured.graphs is not None
    shapes = captured.graphs.captured
    right = shapes[16, 2]
    shapes[16, 2] = type(right)(right.padded, torch.zeros_like(right.output), lambda: None)
    try:
        with pytest.raises(SystemExit, match="differ from the eager twin"):
            list(verify(captured, twin, 1e-4))
    finally:
        shapes[16, 2] = right
