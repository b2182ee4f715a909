"""One checkpoint on one device: rows in, logits out, one pass at a time.

It knows rows, logits, tensors and passes. It must not know questions, requests, or who waits for what. It is
not safe for two threads at once: the lane lets one in at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from worker.buckets import Buckets
from worker.checkpoint import Checkpoint
from worker.errors import DeviceFailed
from worker.graphs import Capturer, CudaCapturer, Graphs
from worker.rows import Logits, Row
from worker.tensors import RowBatch, join_outputs, packed_batch, pad_rows, padded_batch, split_outputs

# The most tokens of a pass on the CPU, one row aside. The cost of one row, by how many share its pass (the embedded
# model, one thread of a busy two-core AMD EPYC virtual machine, 2026-11-30): 16 tokens 39 ms alone, 10 ms among
# sixteen; 64 tokens 49 ms alone, 34 ms among four, 33 ms among eight. From 128 tokens up a row gains nothing from
# sharing a pass, and waits longer.
CPU_TOKENS = 256
# Lengths between which the CPU makes no difference when it chooses rows for a pass. Nothing is padded, so they are
# coarse: with finer ones a row of 50 tokens waits as long as rows of 40 keep coming.
CPU_LENGTHS = (64, 128, 192, 256, 384, 512, 768, 1024)


def use_threads(count: int) -> None:
    """Sets the threads of this process's arithmetic on the CPU."""
    torch.set_num_threads(count)


@contextmanager
def device_errors(device: torch.device) -> Iterator[None]:
    """Turns what torch raises on a GPU into DeviceFailed: after an error there, no later result can be trusted.

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


class LayeredPass:
    """A pass that runs layer by layer: call `step` until `steps_left` is 0, then `logits`."""

    def __init__(self, checkpoint: Checkpoint, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._steps = checkpoint.steps
        self._device = checkpoint.device
        self._done = 0
        self._logits: list[Logits] = []
        with device_errors(self._device), torch.inference_mode():
            self._batch = packed_batch(rows) if self._device.type == "cpu" else _padded(rows, self._device)
            self._hidden, self._rotations = self._steps.begin(self._batch)

    @property
    def steps_left(self) -> int:
        """The layers that are left, and one more step that makes the logits."""
        return self._steps.depth + 1 - self._done

    def step(self) -> None:
        with device_errors(self._device), torch.inference_mode():
            if self._done < self._steps.depth:
                self._hidden = self._steps.step(self._done, self._hidden, self._batch, self._rotations)
            else:
                options, actions = self._steps.end(self._hidden, self._batch)
                lines = join_outputs((options, actions)).tolist()
                self._logits = split_outputs(self.rows, lines, options.shape[-1])
        self._done += 1

    def logits(self) -> list[Logits]:
        return self._logits


def _padded(rows: Sequence[Row], device: torch.device) -> RowBatch:
    """The batch of rows padded to the longest, on `device`."""
    length = max(len(row.token_ids) for row in rows)
    options = max(len(row.markers) for row in rows)
    return padded_batch(pad_rows(rows, length, len(rows), options).to(device), length, options)


class ReplayedPass:
    """A pass that is one step: the replay of a captured bucket."""

    def __init__(
        self, graphs: Graphs, rows: Sequence[Row], size: tuple[int, int], device: torch.device
    ) -> None:
        self.steps_left = 1
        self._graphs, self._rows, self._size, self._device = graphs, rows, size, device
        self._logits: list[Logits] = []

    def step(self) -> None:
        with device_errors(self._device):
            self._logits = self._graphs.run(self._rows, self._size)
        self.steps_left = 0

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
        capturer: Capturer | None = None,
    ) -> None:
        """`buckets` and `graphs` matter on CUDA only. `capturer`: captures passes instead of CUDA graphs."""
        self.checkpoint = checkpoint
        device = checkpoint.device
        if capturer is None and device.type == "cuda" and graphs:
            capturer = CudaCapturer(device)
        if capturer is None and device.type == "cpu":
            self.buckets = Buckets(CPU_LENGTHS, max_tokens=CPU_TOKENS)
        else:
            self.buckets = (buckets or Buckets()).up_to(checkpoint.config.max_len)
        if device.type == "cpu" and checkpoint.dtype == "fp32":
            # On two cores 1.5 times as fast as the plain order for short rows, 1.2 times for long ones.
            checkpoint.steps.reorder_weights()
        self.graphs: Graphs | None = None
        if capturer is not None:
            self.graphs = Graphs(checkpoint.steps, self.buckets, device, capturer)
        tokenizer = checkpoint.tokenizer
        self.run([Row((tokenizer.cls, tokenizer.mask, tokenizer.sep), (1,), 0)])

    @property
    def key(self) -> tuple[str, ...]:
        """Rows of engines with one key have the same logits."""
        return (*self.checkpoint.key, self.checkpoint.dtype)

    def start(self, rows: Sequence[Row]) -> LayeredPass | ReplayedPass:
        """A pass over `rows`, which the lane chose."""
        size = self.graphs.bucket_for(rows) if self.graphs else None
        if self.graphs is None or size is None:
            return LayeredPass(self.checkpoint, rows)
        return ReplayedPass(self.graphs, rows, size, self.checkpoint.device)

    def run(self, rows: Sequence[Row]) -> list[Logits]:
        """A pass from start to end."""
        device_pass = self.start(rows)
        while device_pass.steps_left:
            device_pass.step()
        return device_pass.logits()

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
                "graphs": len(self.graphs.captured),
                "graph_seconds": round(self.graphs.seconds, 1),
                "graph_mib": round(self.graphs.bytes / (1 << 20)),
            }
        return facts
