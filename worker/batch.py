"""Many states, one set of questions: results in order, each on its own.

It knows how a batch is cut into shared passes and what its lines say. It must not know HTTP beyond the status
that each refused state's error object carries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from worker.decide import Outcome, Policy, ServedModel, decide_states, plan_question
from worker.encoding import encode
from worker.errors import Refused
from worker.lane import Lane
from worker.protocol import BatchRequest, check_state

# Rows that go to the lane at once: enough to fill a pass, few enough that others get their turn in between
# and that a stream's first lines leave early.
ROWS = 16


@dataclass(slots=True)
class Counts:
    """What became of the states so far."""

    decided: int = 0
    failed: int = 0
    usage: dict[str, int] = field(default_factory=lambda: {"input_tokens": 0, "output_tokens": 0})

    def add(self, outcome: Outcome) -> None:
        """Count one state."""
        if isinstance(outcome, Refused):
            self.failed += 1
            return
        self.decided += 1
        for name in self.usage:
            self.usage[name] += outcome.usage[name]


def outcomes(
    model: ServedModel, lane: Lane, batch: BatchRequest, policy: Policy, alive: Callable[[], bool]
) -> Iterator[Outcome]:
    """Each state's decision or refusal, in order. Raises ClientGone; a refusal by the lane is an outcome."""
    plans = [plan_question(model.tokenizer, question, policy) for question in batch.questions]
    step = max(1, ROWS // len(batch.questions))
    for low in range(0, len(batch.states), step):
        states = batch.states[low : low + step]
        checked = [_checked(state, low + i) for i, state in enumerate(states)]
        good = [state for state, refused in zip(states, checked, strict=True) if refused is None]
        try:
            decided = iter(decide_states(model, lane, good, plans, policy, alive) if good else [])
        except Refused as refused:
            decided = iter([refused] * len(good))
        for wrong in checked:
            yield next(decided) if wrong is None else wrong


def result(model_name: str, outcome: Outcome) -> dict[str, Any]:
    """A state's result object: answers and usage, or an error with its status."""
    if isinstance(outcome, Refused):
        return {"error": {"status": outcome.status, **outcome.body()}}
    return {"model": model_name, "answers": outcome.answers, "usage": outcome.usage}


def lines(model_name: str, outcomes: Iterator[Outcome]) -> Iterator[bytes]:
    """The results as JSON lines, each with its state's index; the last line has the counts."""
    counts = Counts()
    for index, outcome in enumerate(outcomes):
        counts.add(outcome)
        yield encode({"index": index} | result(model_name, outcome)) + b"\n"
    yield encode({"summary": summary(counts)}) + b"\n"


def whole(model_name: str, outcomes: Iterator[Outcome]) -> dict[str, Any]:
    """The results as one document."""
    counts, results = Counts(), []
    for outcome in outcomes:
        counts.add(outcome)
        results.append(result(model_name, outcome))
    return {"results": results, "total_usage": counts.usage, "x_summary": summary(counts)}


def summary(counts: Counts) -> dict[str, Any]:
    """The counts as a client reads them."""
    total = counts.decided + counts.failed
    return {"states": total, "decided": counts.decided, "failed": counts.failed, "usage": counts.usage}


def _checked(state: Any, index: int) -> Refused | None:
    try:
        check_state(state, "states", index)
    except Refused as refused:
        return refused
    return None
