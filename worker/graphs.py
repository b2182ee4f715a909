"""Passes captured once for every bucket and replayed: padded rows, one copy in, one copy out.

It knows buckets, padded rows and how to capture a pass. It must not know whose rows they are, or when a pass is due.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker.buckets import Buckets, option_slots
from worker.model import ModelSteps
from worker.rows import Logits, Row
from worker.tensors import join_outputs, pad_rows, padded_batch, split_outputs

log = logging.getLogger("worker")

# Runs before a capture: libraries choose their kernels and allocate their workspaces in the first ones.
WARM_UP_RUNS = 3


class Capturer(Protocol):
    """Captures a function of static tensors."""

    def capture(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """The function's output, and a replay that computes it again, in place, from what its inputs hold by then."""


class CudaCapturer:
    """CUDA graphs, all in one memory pool: no two ever run at once, so the memory of the largest serves all."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_RUNS):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # "thread_local": another thread that only asks the driver a question must not break the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = function()
        return output, graph.replay


@dataclass(frozen=True, slots=True)
class CapturedBucket:
    """One bucket: its padded rows on the device, its output, and how to compute it."""

    padded: Tensor
    output: Tensor
    replay: Callable[[], None]


class Graphs:
    """The captured passes of a model. `seconds` and `bytes` are what capturing them cost."""

    def __init__(self, steps: ModelSteps, buckets: Buckets, device: torch.device, capturer: Capturer) -> None:
        """Captures every bucket. One that the device's memory has no room for runs eagerly."""
        self.buckets = buckets
        self.captured: dict[tuple[int, int], CapturedBucket] = {}
        started, before = time.monotonic(), _reserved_bytes(device)
        # The largest first: the memory that it frees serves all others.
        sizes = [(length, count) for length in buckets.lengths for count in buckets.counts]
        sizes.sort(key=lambda size: size[0] * size[1], reverse=True)
        for done, (length, count) in enumerate(sizes):
            _show_progress(done, len(sizes))
            try:
                self.captured[length, count] = self._capture(steps, length, count, device, capturer)
            except torch.OutOfMemoryError:
                log.warning(
                    "no memory for the graph of %d rows of %d tokens: they run eagerly", count, length
                )
        _show_progress(len(sizes), len(sizes))
        self.seconds, self.bytes = time.monotonic() - started, _reserved_bytes(device) - before
        log.info(
            "captured %d graphs in %.1f s, %.0f MiB", len(self.captured), self.seconds, self.bytes / (1 << 20)
        )

    @staticmethod
    def _capture(
        steps: ModelSteps, length: int, count: int, device: torch.device, capturer: Capturer
    ) -> CapturedBucket:
        options = option_slots(length)
        padded = pad_rows((), length, count, options).to(device)

        def run() -> Tensor:
            return join_outputs(steps.run(padded_batch(padded, length, options)))

        with torch.inference_mode():
            output, replay = capturer.capture(run)
        return CapturedBucket(padded, output, replay)

    def bucket_for(self, rows: Sequence[Row]) -> tuple[int, int] | None:
        """The smallest captured bucket (length, count) that takes `rows`; None if none does."""
        lengths = [self.buckets.length_for(len(row.token_ids), len(row.markers)) for row in rows]
        if None in lengths or len(rows) > self.buckets.counts[-1]:
            return None
        longest = max(length for length in lengths if length is not None)
        size = longest, self.buckets.count_for(len(rows))
        return size if size in self.captured else None

    def run(self, rows: Sequence[Row], size: tuple[int, int]) -> list[Logits]:
        """The logits of `rows`, which fit the bucket `size`."""
        length, count = size
        options = option_slots(length)
        bucket = self.captured[size]
        with torch.inference_mode():
            bucket.padded.copy_(pad_rows(rows, length, count, options))
            bucket.replay()
            # Copied out while the caller still has the device to itself: the next replay overwrites the output.
            return split_outputs(rows, bucket.output.tolist(), options)


def _reserved_bytes(device: torch.device) -> int:
    """Device memory that this process has reserved; 0 on the CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def _show_progress(done: int, total: int) -> None:
    """A bar on stderr, if it is a terminal."""
    if sys.stderr.isatty():
        width = 40 * done // max(1, total)
        end = "\n" if done == total else ""
        print(
            f"\rcapturing graphs [{'#' * width:40}] {done}/{total}{end}", end="", file=sys.stderr, flush=True
        )
