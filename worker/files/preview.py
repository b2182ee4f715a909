"""What a job would show the model, without deciding: the rows of its first records, as text, and what would be cut.

It knows rows and their cost. It must not know files, or what the model makes of a row.
"""

from collections.abc import Iterator, Sequence

from worker import usage
from worker.decide import Policy, ServedModel, plan_question
from worker.errors import TooManyTokens
from worker.files.answered import message
from worker.files.deciders import Task
from worker.protocol import Question
from worker.rows import build_row, tokenize_state


def lines(model: ServedModel, questions: Sequence[Question], policy: Policy, task: Task) -> Iterator[str]:
    """A record's rows, one for each question or part of its options."""
    yield f"{task.record.file}:{task.record.line}"
    if task.refused is not None:
        yield f"  bad record: {message(task.refused['error']['detail'])}"
        return
    tokenizer = model.tokenizer
    state = tokenize_state(tokenizer, task.state)
    for question in questions:
        plan = plan_question(tokenizer, question, policy)
        for prompt, part in zip(plan.prompts, plan.parts, strict=True):
            try:
                row, used = build_row(tokenizer, prompt, state, question.id)
            except TooManyTokens as refused:
                yield f"  {question.id}: {message(refused.detail)}"
                continue
            cost = usage.Cost(question, len(row.token_ids), used, (prompt,), (part,), len(plan.prompts))
            cut = usage.first_cut(cost, len(state.token_ids))
            yield f"  {question.id}: {len(row.token_ids)} of at most {tokenizer.max_len} tokens" + (
                f"; cut: {cut}" if cut else "; nothing is cut"
            )
            yield f"    {tokenizer.decode(row.token_ids)}"
