"""Rows in, logits out: equal to laya's, and the same whatever shares the pass or however it is run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import laya
import pytest
import torch

from tests.checkpoints import write
from tests.servers import memory
from tests.worker.models import by_laya, difference, random_row, shares
from worker import checkpoint, engine
from worker.buckets import Buckets
from worker.engine import Engine
from worker.errors import DeviceFailed
from worker.lane import Lane
from worker.linears import linear, reorder_weights, rows_for_onednn
from worker.rows import Row

EMBEDDED = Path(engine.__file__).with_name("default")
# Of logits of size 1 to 10: what a different order of the same sums changes in fp32, with room for deep models.
ROUNDING = 2e-5


class Rerun:
    """Stands in for CUDA graphs on the CPU: a replay runs the function again, into the captured output."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def capture(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        self.captures += 1
        output = function()

        def replay() -> None:
            self.replays += 1
            output.copy_(function())

        return output, replay


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are small: on a busy machine two threads spend more time waiting for each other than computing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["modernbert", "bert", "embedded"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "embedded":
        return EMBEDDED
    return write(tmp_path_factory.mktemp(request.param), family=request.param)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(str(folder), "cpu", "fp32")


@pytest.fixture(scope="module")
def plain(loaded: checkpoint.Checkpoint) -> Engine:
    return Engine(loaded)


@pytest.fixture(scope="module")
def agent(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return laya.load(str(folder), device="cpu")


def test_logits_are_layas(plain: Engine, agent: Any) -> None:
    chance = random.Random(1)
    for tokens in (3, 4, 9, 48, 64, 65, 66, 129, 130, 131, 300, 512):
        for options in (1, 2, 7)[: 1 + tokens % 3]:
            row = random_row(chance, tokens, options)
            assert difference(plain.run([row]), by_laya(agent, [row])) < ROUNDING, (tokens, options)


def test_logits_are_layas_for_a_request_that_it_pads(plain: Engine, agent: Any) -> None:
    chance = random.Random(2)
    rows = [random_row(chance, tokens, options) for tokens, options in ((512, 2), (20, 1), (80, 60), (3, 2))]
    assert difference(plain.run(rows), by_laya(agent, rows)) < ROUNDING


def test_most_options(plain: Engine, agent: Any) -> None:
    row = random_row(random.Random(3), 400, 255)
    assert difference(plain.run([row]), by_laya(agent, [row])) < ROUNDING


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("family", ["modernbert", "roberta"])
def test_a_head_of_any_depth(layers: int, family: str, tmp_path: Path) -> None:
    """The last layer, of the head or the encoder, is where single positions are picked."""
    folder = write(tmp_path, family=family, head_layers=layers)
    alone = Engine(checkpoint.load(str(folder), "cpu", "fp32"))
    chance = random.Random(9)
    rows = [random_row(chance, tokens, options) for tokens, options in ((140, 2), (20, 7), (3, 1))]
    said = by_laya(laya.load(str(folder), device="cpu"), rows)
    assert difference(alone.run(rows), said) < ROUNDING
    padded = Engine(alone.checkpoint, buckets=Buckets(lengths=(150,), counts=(1, 4)), capturer=Rerun())
    assert difference(padded.run(rows), said) < ROUNDING


def test_company_changes_no_answer(plain: Engine) -> None:
    chance = random.Random(4)
    rows = [random_row(chance, chance.choice((5, 20, 66, 140)), chance.randrange(1, 9)) for _ in range(20)]
    alone = [plain.run([row])[0] for row in rows]
    for size in (2, 5, 20):
        for start in range(0, len(rows), size):
            for one, other in zip(
                plain.run(rows[start : start + size]), alone[start : start + size], strict=True
            ):
                mine, its = shares(one), shares(other)
                assert mine.index(max(mine)) == its.index(max(its))
                assert max(abs(a - b) for a, b in zip(mine, its, strict=True)) < 1e-5


def test_the_same_row_twice_gives_the_same_bits(plain: Engine) -> None:
    row = random_row(random.Random(5), 120)
    assert plain.run([row]) == plain.run([row])


def test_one_step_at_a_time_equals_one_pass_while_others_run_between(plain: Engine) -> None:
    chance = random.Random(6)
    long, short = random_row(chance, 300), random_row(chance, 20)
    whole = plain.run([long])
    device_pass = plain.start([long])
    while device_pass.steps_left:
        plain.run([short])
        device_pass.step()
    assert device_pass.logits() == whole


def test_every_bucket_and_every_real_length_equal_the_unpadded_row(folder: Path, plain: Engine) -> None:
    """Also what a captured pass leaves behind must not reach the next one, and no padding becomes NaN."""
    capturer, chance = Rerun(), random.Random(7)
    buckets = Buckets(lengths=(8, 40, 144), counts=(1, 2, 4))
    captured = Engine(plain.checkpoint, buckets=buckets, capturer=capturer)
    assert capturer.captures == len(captured.buckets.lengths) * 3
    longest = 144
    # Every length where local layers leave padding nothing to see, and some for the others.
    step = {"modernbert": 1, "bert": 7}.get(plain.checkpoint.model.encoder.config.model_type, 7)
    step = 29 if folder == EMBEDDED else step
    for length in (*range(2, longest, step), longest):
        row = random_row(chance, length, min(length // 2, 3))
        company = random_row(chance, max(2, min(length, 7)), 1)
        alone = plain.run([row, company])
        for rows in ([row], [company, row], [row, company, company]):
            got = captured.run(rows)
            expected = [alone[0] if one is row else alone[1] for one in rows]
            assert difference(got, expected) < ROUNDING, (length, len(rows))
    assert capturer.replays >= 18


def test_a_shape_without_a_graph_runs_eagerly(plain: Engine) -> None:
    capturer, chance = Rerun(), random.Random(8)
    captured = Engine(plain.checkpoint, buckets=Buckets(lengths=(32,), counts=(1, 2)), capturer=capturer)
    before = capturer.replays
    rows = [random_row(chance, 20) for _ in range(3)]
    crowded = random_row(chance, 30, 29)
    assert difference(captured.run(rows), plain.run(rows)) < ROUNDING
    assert capturer.replays == before
    assert difference(captured.run([crowded]), plain.run([crowded])) < ROUNDING
    facts = captured.describe()
    assert facts["graphs"] == capturer.captures


def test_too_little_memory_for_a_graph_leaves_its_bucket_eager(plain: Engine) -> None:
    class Small(Rerun):
        def capture(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
            if not self.captures:
                self.captures += 1
                raise torch.OutOfMemoryError("no memory")
            return super().capture(function)

    captured = Engine(plain.checkpoint, buckets=Buckets(lengths=(16,), counts=(1,)), capturer=Small())
    assert captured.graphs is not None
    assert list(captured.graphs.captured) == [(16, 1)]
    row = random_row(random.Random(9), 400)
    assert difference(captured.run([row]), plain.run([row])) < ROUNDING


def test_a_capture_that_fails_stops_the_start(plain: Engine) -> None:
    class Broken(Rerun):
        def capture(self, function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
            raise RuntimeError("capture failed")

    with pytest.raises(RuntimeError, match="capture failed"):
        Engine(plain.checkpoint, capturer=Broken())


def test_bf16_layers_stay_near_fp32_and_finite_in_every_padding(folder: Path, plain: Engine) -> None:
    lowered = replace(checkpoint.load(str(folder), "cpu", "fp32"), dtype="bf16")
    checkpoint.cast_linears(lowered.model, torch.bfloat16)
    low = Engine(lowered, buckets=Buckets(lengths=(16, 80), counts=(1, 2)), capturer=Rerun())
    chance = random.Random(10)
    for tokens in (2, 9, 16, 17, 66, 80, 300):
        row = random_row(chance, tokens, 2)
        near, far = shares(low.run([row])[0]), shares(plain.run([row])[0])
        # Random weights spread the logits more than trained ones do; the bound is for the arithmetic.
        assert max(abs(a - b) for a, b in zip(near, far, strict=True)) < 0.15, tokens
    assert low.checkpoint.dtype == "bf16"
    assert lowered.model.encoder.get_input_embeddings().weight.dtype == torch.float32
    assert lowered.model.scorer[1].weight.dtype == torch.float32


def test_torchs_errors_are_the_devices_only_on_a_device() -> None:
    gpu = torch.device("cuda:0")
    with pytest.raises(DeviceFailed) as caught, engine.device_errors(gpu):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "illegal" in str(caught.value.__cause__)
    with pytest.raises(torch.OutOfMemoryError), engine.device_errors(gpu):
        raise torch.OutOfMemoryError("too long")
    with pytest.raises(RuntimeError, match="odd"), engine.device_errors(torch.device("cpu")):
        raise RuntimeError("odd")


def test_a_real_engine_behind_the_lane(plain: Engine) -> None:
    chance, lane = random.Random(11), Lane()
    rows = [random_row(chance, chance.choice((5, 20, 300)), 2) for _ in range(20)]
    ran = lane.run(plain, rows)
    assert difference(ran.logits, [plain.run([row])[0] for row in rows]) < ROUNDING


@pytest.mark.usefixtures("torch_threads")
def test_threads() -> None:
    for count in (2, 1):
        engine.use_threads(count)
        assert torch.get_num_threads() == count


def test_rows_of_one_token(plain: Engine) -> None:
    assert len(plain.run([Row((5,), (0,), 0)])[0].options) == 1


def test_onednn_is_given_few_numbers_of_rows() -> None:
    given = {count: rows_for_onednn(count) for count in range(1, 2049)}
    assert all(count <= room <= count * 17 / 16 for count, room in given.items())
    assert len({room for count, room in given.items() if count <= 512}) == 96
    assert all(room == count for count, room in given.items() if count <= 32)


def test_a_filled_linear_is_the_plain_one() -> None:
    plain = torch.nn.Linear(48, 20)
    ready = deepcopy(plain)
    reorder_weights(ready)
    for shape in ((1, 48), (33, 48), (5, 13, 48), (3, 1, 48), (130, 48), (300, 48)):
        state = torch.randn(shape)
        with torch.inference_mode():
            output = linear(ready, state)
            assert output.shape == (*shape[:-1], 20)
            torch.testing.assert_close(output, plain(state), atol=1e-5, rtol=0)


# oneDNN is torch's, and torch is the same in both environments.
@pytest.mark.once
def test_memory_is_flat_over_rows_of_every_shape(tmp_path: Path) -> None:
    chance, lane = random.Random(12), Lane(cache_rows=50)
    tiny = Engine(checkpoint.load(str(write(tmp_path / "tiny")), "cpu", "fp32"))

    def ask(times: int) -> None:
        for _ in range(times):
            lane.run(tiny, [random_row(chance, chance.randrange(2, 120), chance.randrange(1, 20))])

    ask(400)  # until oneDNN has met every number of rows that it is ever given
    before = memory(os.getpid(), "VmRSS")
    ask(1_400)
    assert memory(os.getpid(), "VmRSS") - before < 20e6
    assert lane.snapshot().cached_rows == 50
