"""Passes recorded once for every bucket and replayed: rows in a rectangle with padding, one copy in, one copy out.

It knows buckets, rectangles and how to record. It must not know whose rows they are, or when a pass is due.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker.buckets import Buckets, slots
from worker.encoders import Batch, Padded
from worker.model import Steps
from worker.rows import Logits, Row

log = logging.getLogger("worker")

# Runs before a recording: the libraries pick their kernels and allocate their workspaces in the first ones.
WARM_UP = 3


class Recorder(Protocol):
    """Records a function of static tensors."""

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """The function's output, and a replay that computes it anew, in place, from what its inputs hold then."""


class CudaRecorder:
    """CUDA graphs, all in one memory pool: they never run at once, so the largest one's memory serves all."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Another thread that only asks the driver a question must not break the recording.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = function()
        return output, graph.replay


def rectangle(rows: Sequence[Row], length: int, count: int, options: int) -> Tensor:
    """Rows as one int64 tensor [count, length + options + 3] on the CPU.

    A line holds the token ids, then the markers, each padded with 0, then how many tokens and markers there are,
    then the question type. Lines past the rows are empty.
    """
    lines = torch.zeros(count, length + options + 3, dtype=torch.int64)
    for line, row in zip(lines, rows, strict=False):
        line[: len(row.token_ids)] = torch.tensor(row.token_ids)
        line[length : length + len(row.markers)] = torch.tensor(row.markers)
        line[-3:] = torch.tensor((len(row.token_ids), len(row.markers), row.question_type))
    return lines


def unfold(lines: Tensor, length: int, options: int) -> Batch:
    """The batch of a rectangle, by operations of fixed shapes on its device."""
    count, device = lines.shape[0], lines.device
    tokens, markers, types = lines[:, -3], lines[:, -2], lines[:, -1]
    place = torch.arange(length, device=device)
    firsts = torch.arange(count, device=device) * length
    return Batch(
        token_ids=lines[:, :length].reshape(-1),
        positions=place.repeat(count),
        types=types[:, None].expand(count, length).reshape(-1),
        firsts=firsts,
        markers=lines[:, length : length + options] + firsts[:, None],
        marked=torch.arange(options, device=device) < markers[:, None],
        layout=Padded(place < tokens[:, None]),
    )


def joined(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Option logits and action logits side by side, so that one copy brings both."""
    return torch.cat(outputs, -1)


def split(rows: Sequence[Row], values: list[list[float]], options: int) -> list[Logits]:
    """The logits of each row, out of lines of `joined` with room for `options` options."""
    return [
        Logits(tuple(line[: len(row.markers)]), tuple(line[options:]))
        for row, line in zip(rows, values, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One bucket: where its rectangle lies on the device, its output, and how to compute it."""

    lines: Tensor
    output: Tensor
    replay: Callable[[], None]


class Graphs:
    """The recorded passes of a model. `seconds` and `bytes` are what recording them cost."""

    def __init__(self, steps: Steps, buckets: Buckets, device: torch.device, recorder: Recorder) -> None:
        """Records every bucket. A bucket that memory does not suffice for runs eagerly."""
        self.buckets = buckets
        self.recorded: dict[tuple[int, int], Recorded] = {}
        self.seconds = 0.0
        self.bytes = 0
        began, before = time.monotonic(), memory(device)
        # The largest first: what it frees serves all the others.
        shapes = [(length, count) for length in buckets.lengths for count in buckets.counts]
        shapes.sort(key=lambda shape: shape[0] * shape[1], reverse=True)
        for done, (length, count) in enumerate(shapes):
            progress(done, len(shapes))
            try:
                self.recorded[length, count] = self._record(steps, length, count, device, recorder)
            except torch.OutOfMemoryError:
                log.warning(
                    "no memory for the graph of %d rows of %d tokens: they run eagerly", count, length
                )
        progress(len(shapes), len(shapes))
        self.seconds, self.bytes = time.monotonic() - began, memory(device) - before
        log.info(
            "recorded %d graphs in %.1f s, %.0f MiB", len(self.recorded), self.seconds, self.bytes / (1 << 20)
        )

    @staticmethod
    def _record(steps: Steps, length: int, count: int, device: torch.device, recorder: Recorder) -> Recorded:
        options = slots(length)
        lines = rectangle((), length, count, options).to(device)

        def run() -> Tensor:
            return joined(steps.run(unfold(lines, length, options)))

        with torch.inference_mode():
            output, replay = recorder.record(run)
        return Recorded(lines, output, replay)

    def of(self, rows: Sequence[Row]) -> tuple[int, int] | None:
        """The smallest recorded bucket that takes `rows`; None if none does."""
        lengths = [self.buckets.of(len(row.token_ids), len(row.markers)) for row in rows]
        if None in lengths or len(rows) > self.buckets.counts[-1]:
            return None
        shape = max(length for length in lengths if length is not None), self.buckets.count(len(rows))
        return shape if shape in self.recorded else None

    def run(self, rows: Sequence[Row], shape: tuple[int, int]) -> list[Logits]:
        """The logits of `rows`, which fit the bucket `shape`."""
        length, count = shape
        options = slots(length)
        bucket = self.recorded[shape]
        with torch.inference_mode():
            bucket.lines.copy_(rectangle(rows, length, count, options))
            bucket.replay()
            # Copied out here, while the caller still has the device to itself: the next replay overwrites it.
            return split(rows, bucket.output.tolist(), options)


def memory(device: torch.device) -> int:
    """Bytes of the device that this process has reserved; 0 on the CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def progress(done: int, whole: int) -> None:
    """A bar, when somebody watches the terminal."""
    if sys.stderr.isatty():
        width = 40 * done // max(1, whole)
        end = "\n" if done == whole else ""
        print(
            f"\rrecording graphs [{'#' * width:40}] {done}/{whole}{end}", end="", file=sys.stderr, flush=True
        )
