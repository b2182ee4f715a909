"""One checkpoint on one device: rows in, logits out, one pass at a time.

It knows rows, logits, tensors and passes. It must not know questions, requests, or who waits for what. It is
not safe for two threads at once: the lane sees to that.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from worker.buckets import Buckets
from worker.checkpoint import Checkpoint
from worker.encoders import Batch, Packed
from worker.errors import DeviceFailed
from worker.graphs import CudaRecorder, Graphs, Recorder, joined, rectangle, split, unfold
from worker.rows import Logits, Row

# On the CPU rows share a pass up to so many tokens. Measured for one row's part, the embedded model, one thread of a
# busy two-core AMD EPYC virtual machine, 2026-11-30: rows of 16 tokens 39 ms alone, 10 ms sixteen together; rows of 64
# 49 ms alone, 34 ms four together, 33 ms eight together. From 128 tokens a row company gains nothing, and waits.
CPU_TOKENS = 256
# Lengths that count as about the same there. Nothing is padded, so they are coarse: with finer ones a row of 50 tokens
# waits as long as rows of 40 keep coming.
CPU_LENGTHS = (64, 128, 192, 256, 384, 512, 768, 1024)


def physical_cores() -> int:
    """The physical cores that this process may run on.

    A second thread on a core adds nothing to dense arithmetic.
    """
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return len(cores)


def use_threads(threads: int | None) -> int:
    """Sets the process's threads for arithmetic on the CPU: None for the physical cores."""
    torch.set_num_threads(threads or physical_cores())
    return torch.get_num_threads()


def packed(rows: Sequence[Row]) -> Batch:
    """The batch of rows end to end, on the CPU."""
    lengths = tuple(len(row.token_ids) for row in rows)
    options = max(len(row.markers) for row in rows)
    ends = torch.tensor(lengths).cumsum(0)
    firsts = ends - torch.tensor(lengths)
    markers = torch.zeros(len(rows), options, dtype=torch.int64)
    marked = torch.zeros(len(rows), options, dtype=torch.bool)
    for index, row in enumerate(rows):
        markers[index, : len(row.markers)] = torch.tensor(row.markers) + firsts[index]
        marked[index, : len(row.markers)] = True
    return Batch(
        token_ids=torch.tensor([token for row in rows for token in row.token_ids]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        types=torch.tensor([row.question_type for row in rows]).repeat_interleave(torch.tensor(lengths)),
        firsts=firsts,
        markers=markers,
        marked=marked,
        layout=Packed(lengths),
    )


def padded(rows: Sequence[Row], device: torch.device) -> Batch:
    """The batch of rows padded to the longest, on `device`."""
    length = max(len(row.token_ids) for row in rows)
    options = max(len(row.markers) for row in rows)
    return unfold(rectangle(rows, length, len(rows), options).to(device), length, options)


def unpacked(rows: Sequence[Row], options: torch.Tensor, actions: torch.Tensor) -> list[Logits]:
    """The logits of each row, out of tensors [n, K] and [n, actions]."""
    return split(rows, joined((options, actions)).tolist(), options.shape[-1])


@contextmanager
def seam(device: torch.device) -> Iterator[None]:
    """Turns what torch raises on a GPU into DeviceFailed: after an error there, nothing that follows is sure.

    Too little memory for one pass is not such an error.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if device.type == "cuda":
            raise DeviceFailed from error
        raise


class Layers:
    """A pass that runs layer by layer: call `step` until `left` is 0, then `logits`."""

    def __init__(self, checkpoint: Checkpoint, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._steps = checkpoint.steps
        self._device = checkpoint.device
        self._done = 0
        self._logits: list[Logits] = []
        with seam(self._device), torch.inference_mode():
            self._batch = packed(rows) if self._device.type == "cpu" else padded(rows, self._device)
            self._state, self._kept = self._steps.begin(self._batch)

    @property
    def left(self) -> int:
        """The steps that are left: the layers, and one that makes the logits."""
        return self._steps.depth + 1 - self._done

    def step(self) -> None:
        with seam(self._device), torch.inference_mode():
            if self._done < self._steps.depth:
                self._state = self._steps.step(self._done, self._state, self._batch, self._kept)
            else:
                self._logits = unpacked(self.rows, *self._steps.end(self._state, self._batch))
        self._done += 1

    def logits(self) -> list[Logits]:
        return self._logits


class Replay:
    """A pass that is one recorded step."""

    def __init__(
        self, graphs: Graphs, rows: Sequence[Row], shape: tuple[int, int], device: torch.device
    ) -> None:
        self.left = 1
        self._run = graphs.run
        self._asked = rows, shape
        self._device = device
        self._logits: list[Logits] = []

    def step(self) -> None:
        with seam(self._device):
            self._logits = self._run(*self._asked)
        self.left = 0

    def logits(self) -> list[Logits]:
        return self._logits


class Engine:
    """A checkpoint ready to run: warm, and on a GPU with a graph for every bucket."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        buckets: Buckets | None = None,
        graphs: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        """`buckets` and `graphs` matter on CUDA. `recorder`: records passes in place of CUDA graphs."""
        self.checkpoint = checkpoint
        device = checkpoint.device
        if recorder is None and device.type == "cuda" and graphs:
            recorder = CudaRecorder(device)
        if recorder is None and device.type == "cpu":
            self.buckets = Buckets(CPU_LENGTHS, tokens=CPU_TOKENS)
        else:
            self.buckets = (buckets or Buckets()).up_to(checkpoint.config.max_len)
        if device.type == "cpu" and checkpoint.dtype == "fp32":
            # Measured on two cores: 1.5 times as fast as the plain order for short rows, 1.2 times for long ones.
            checkpoint.steps.pack()
        self.graphs: Graphs | None = None
        if recorder is not None:
            self.graphs = Graphs(checkpoint.steps, self.buckets, device, recorder)
        self.run([Row((checkpoint.special.cls, checkpoint.special.mask, checkpoint.special.sep), (1,), 0)])

    @property
    def key(self) -> tuple[str, ...]:
        """Rows of engines with one key have the same logits."""
        return (*self.checkpoint.key, self.checkpoint.dtype)

    def start(self, rows: Sequence[Row]) -> Layers | Replay:
        """A pass over `rows`, which the lane chose."""
        shape = self.graphs.of(rows) if self.graphs else None
        if self.graphs is None or shape is None:
            return Layers(self.checkpoint, rows)
        return Replay(self.graphs, rows, shape, self.checkpoint.device)

    def run(self, rows: Sequence[Row]) -> list[Logits]:
        """A pass from start to end."""
        work = self.start(rows)
        while work.left:
            work.step()
        return work.logits()

    def describe(self) -> dict[str, object]:
        """What this engine is, for a health answer; asks the device nothing."""
        facts: dict[str, object] = {
            "checkpoint": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "device": str(self.checkpoint.device),
            "dtype": self.checkpoint.dtype,
        }
        if self.graphs is not None:
            facts |= {
                "graphs": len(self.graphs.recorded),
                "graph_seconds": round(self.graphs.seconds, 1),
                "graph_mib": round(self.graphs.bytes / (1 << 20)),
            }
        return facts
