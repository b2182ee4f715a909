"""One checkpoint on one device: rows in, logits out, one pass at a time.

It knows rows, logits, tensors and passes. It must not know questions, requests, or who waits for what. It is
not safe for two threads at once: the lane sees to that.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from worker.buckets import Buckets
from worker.checkpoint import Checkpoint
from worker.encoders import Batch, Packed
from worker.rows import Logits, Row


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


def unpacked(rows: Sequence[Row], options: torch.Tensor, actions: torch.Tensor) -> list[Logits]:
    """The logits of each row, out of tensors [n or more, K] and [n or more, actions]."""
    return [
        Logits(tuple(logits[: len(row.markers)]), tuple(act))
        for row, logits, act in zip(rows, options.tolist(), actions.tolist(), strict=False)
    ]


class Pass:
    """One pass over some rows: call `step` until `left` is 0, then `logits`."""

    def __init__(self, engine: "Engine", rows: Sequence[Row]) -> None:
        self.rows = rows
        self.tokens = sum(len(row.token_ids) for row in rows)
        self._steps = engine.checkpoint.steps
        self._done = 0
        self._logits: list[Logits] = []
        with torch.inference_mode():
            self._batch = engine.batch(rows)
            self._state, self._kept = self._steps.begin(self._batch)

    @property
    def left(self) -> int:
        """The steps that are left: the layers, and one that makes the logits."""
        return self._steps.depth + 1 - self._done

    def step(self) -> None:
        with torch.inference_mode():
            if self._done < self._steps.depth:
                self._state = self._steps.step(self._done, self._state, self._batch, self._kept)
            else:
                self._logits = unpacked(self.rows, *self._steps.end(self._state, self._batch))
        self._done += 1

    def logits(self) -> list[Logits]:
        return self._logits


class Engine:
    """A checkpoint ready to run."""

    def __init__(
        self, checkpoint: Checkpoint, *, buckets: Buckets | None = None, graphs: bool = True
    ) -> None:
        """`buckets` and `graphs` matter on CUDA only."""
        self.checkpoint = checkpoint
        self.buckets = buckets or Buckets()

    @property
    def key(self) -> tuple[str, ...]:
        """Rows of engines with one key have the same logits."""
        return (*self.checkpoint.key, self.checkpoint.dtype)

    def batch(self, rows: Sequence[Row]) -> Batch:
        return packed(rows)

    def start(self, rows: Sequence[Row]) -> Pass:
        """A pass over `rows`, which the lane chose."""
        return Pass(self, rows)

    def run(self, rows: Sequence[Row]) -> list[Logits]:
        """A pass from start to end."""
        work = self.start(rows)
        while work.left:
            work.step()
        return work.logits()

    def describe(self) -> dict[str, object]:
        """What this engine is, for a health answer; asks the device nothing."""
        return {
            "model": self.checkpoint.name,
            "revision": self.checkpoint.revision,
            "device": str(self.checkpoint.device),
            "dtype": self.checkpoint.dtype,
        }
