"""Who decides a job's records: the engine in this process, or a running deployment.

It knows how many records to have under way at once. It must not know files or formats. Results come in the records'
order, one for each.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from worker import batch
from worker.decide import Policy, ServedModel, decide_states, plan_question
from worker.errors import ClientGone, DeviceFailed
from worker.files.answered import Result, failure
from worker.files.records import Record
from worker.lane import Lane
from worker.protocol import Question
from worker.remote import Deployment, DeploymentFailed, RequestRefused

# Rows that go to the lane together. The lane sorts them by length, so that rows of about one length share a pass; with
# more, a killed job loses more work.
ROWS = 512
# As many failures of the deployment in a row are no accident: the job stops, and those records are decided next time.
FAILURES = 16


class Stopped(Exception):
    """The job cannot go on now. What is written stays; the same command goes on from there."""

    exit_status = 3


class Interrupted(Stopped):
    """Somebody asked the job to stop."""

    exit_status = 130

    def __init__(self) -> None:
        super().__init__("stopped")


@dataclass(frozen=True, slots=True)
class Task:
    """A record to decide: its state, or the result that it has already because it is bad."""

    record: Record
    state: Any = None
    refused: Result | None = None


class Decider(Protocol):
    """`results` gives each task's record and result in order. Raises Stopped."""

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Record, Result]]: ...


class Local:
    """The engine in this process."""

    def __init__(
        self,
        model: ServedModel,
        lane: Lane,
        questions: Sequence[Question],
        policy: Policy,
        alive: Callable[[], bool],
    ) -> None:
        """`alive`: False once the job should stop."""
        self._model = model
        self._lane = lane
        self._plans = [plan_question(model.tokenizer, question, policy) for question in questions]
        self._policy = policy
        self._alive = alive
        self._states = max(1, ROWS // sum(len(plan.prompts) for plan in self._plans))

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Record, Result]]:
        left = iter(tasks)
        while window := list(islice(left, self._states)):
            states = [task.state for task in window if task.refused is None]
            try:
                outcomes = iter(
                    decide_states(self._model, self._lane, states, self._plans, self._policy, self._alive)
                )
            except ClientGone:
                raise Interrupted from None
            except DeviceFailed as failed:
                raise Stopped("the device failed") from failed
            for task in window:
                result = task.refused or batch.result(self._model.identity, next(outcomes))
                yield task.record, result


class Remote:
    """A deployment, asked by `callers` threads."""

    def __init__(
        self, deployment: Deployment, request: dict[str, Any], callers: int, alive: Callable[[], bool]
    ) -> None:
        """`request`: the questions, and the model if one is named; each task's state is put beside them.

        `alive`: False once the job should stop; requests under way are waited for then, and decided again next time.
        """
        self._deployment = deployment
        self._request = request
        self._callers = callers
        self._alive = alive

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Record, Result]]:
        # From a failure of the deployment on, results are held back until one of its answers follows.
        held: list[tuple[Record, Result]] = []
        failures = 0
        for task, outcome in self._outcomes(tasks):
            if isinstance(outcome, DeploymentFailed):
                failures += 1
                reason = f"The deployment failed: {outcome}."
                held.append((task.record, failure({"message": reason}, outcome.status)))
                if failures == FAILURES:
                    raise Stopped(f"the deployment failed {FAILURES} times in a row: {outcome}")
                continue
            held.append((task.record, outcome))
            if not failures or task.refused is None:
                yield from held
                held, failures = [], 0
        if held:
            raise Stopped("the deployment failed on the last records")

    def _outcomes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result | DeploymentFailed]]:
        left = iter(tasks)
        with ThreadPoolExecutor(self._callers) as pool:
            # Twice as many as callers, so that a slow first one does not leave the others without work.
            under_way: deque[tuple[Task, Future[Result | DeploymentFailed]]] = deque()
            try:
                while True:
                    for task in islice(left, 2 * self._callers - len(under_way)):
                        under_way.append((task, pool.submit(self._decide, task)))
                    if not under_way:
                        return
                    task, future = under_way.popleft()
                    outcome = future.result()
                    if not self._alive():
                        raise Interrupted
                    yield task, outcome
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _decide(self, task: Task) -> Result | DeploymentFailed:
        if task.refused is not None:
            return task.refused
        try:
            return self._deployment.decide({**self._request, "state": task.state})
        except RequestRefused as refused:
            return failure(refused.detail, refused.status)
        except DeploymentFailed as failed:
            return failed
