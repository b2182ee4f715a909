"""Token rows: what one question about one state becomes before it reaches the device.

It knows the sequence `[CLS] head [SEP] ([MASK] option)... [SEP] state [SEP]` with every budget and cut of the
Laya format. It must not know JSON bodies, HTTP, torch or a tokenizer's kind: text becomes ids through one
function that it is given.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import TooManyTokens, words
from worker.protocol import Question

# The question type's index, as the checkpoint's type embedding and temperatures are ordered.
CHOICE, SCORE, NOUL = 0, 1, 2
TYPE_INDEX = {"choice": CHOICE, "score": SCORE, "noul": NOUL}

# The format's constants, which the published checkpoints were trained with.
OPTION_TOKENS = 48
MIN_HEAD_BUDGET = 16
MIN_OPTION_TOKENS = 4
MIN_HEAD_TOKENS = 8
NOUL_DEFAULTS = ("no, the statement does not hold", "yes, the statement holds")


@dataclass(frozen=True, slots=True)
class Row:
    """One question about one state. Equal rows of one checkpoint have equal logits.

    `token_ids`: the whole sequence, without padding. `markers`: the position of each option's [MASK], in the
    options' order. `question_type`: CHOICE, SCORE or NOUL.
    """

    token_ids: tuple[int, ...]
    markers: tuple[int, ...]
    question_type: int


@dataclass(frozen=True, slots=True)
class Logits:
    """What the model says of a row, before any temperature.

    `options`: one logit for each marker. `actions`: the action head's logits.
    """

    options: tuple[float, ...]
    actions: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reader:
    """How a checkpoint reads text: its tokenizer, the special ids, its budgets in tokens."""

    encode: Callable[[str], list[int]]
    cls: int
    sep: int
    mask: int
    mask_text: str
    max_len: int
    head_max_len: int

    def ids(self, text: str) -> list[int]:
        """The ids of a caller's `text`, in which the mask token is plain text: a marker is ours alone."""
        return self.encode(text.replace(self.mask_text, " "))


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a row that the question alone decides, and what its budget cost.

    `instructions_dropped`: tokens cut from the instructions. `options_cut`: the options that lost tokens.
    `per_option`: the tokens to which all options were cut, mask included; None when they were not.
    `distinct`: how many options still differ. `alike`: groups of options that no longer do.
    """

    token_ids: tuple[int, ...]
    markers: tuple[int, ...]
    question_type: int
    instructions_dropped: int
    options_cut: tuple[int, ...]
    per_option: int | None
    distinct: int
    alike: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class State:
    """A state's ids, once for all questions. A list, read as a conversation, keeps its end when it is cut."""

    token_ids: tuple[int, ...]
    keep_end: bool


def text_of(value: Any) -> str:
    """A value as the model reads it: a string as it is, anything else as one line of JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def option_texts(question: Question) -> list[str]:
    """The texts of a question's options, in the order of its names."""
    criteria = question.criteria
    if question.type == "choice":
        return [_described(name, value) for name, value in criteria.items()]
    if question.type == "score":
        return [f"level {i}: {text_of(level)}" for i, level in enumerate(criteria)]
    parts = [(criteria or {}).get(key) for key in ("false", "true")]
    described = [
        default if _missing(part) else text_of(part)
        for part, default in zip(parts, NOUL_DEFAULTS, strict=True)
    ]
    return [f"{label}: {text}" for label, text in zip(question.labels, described, strict=True)]


def read_state(reader: Reader, state: Any) -> State:
    """The ids of a whole state; each row takes what it has room for."""
    return State(tuple(reader.ids(text_of(state))), isinstance(state, list))


def head(reader: Reader, question: Question, texts: Sequence[str] | None = None) -> Head:
    """The head and options of a question; `texts` stands for its own option texts, or for some of them."""
    texts = option_texts(question) if texts is None else texts
    instructions = reader.encode(
        f"{question.type} question: " + text_of(question.instructions).replace(reader.mask_text, " ")
    )
    whole = [reader.ids(" " + text) for text in texts]
    options = [(reader.mask, *ids[:OPTION_TOKENS]) for ids in whole]
    budget = reader.head_max_len - sum(map(len, options))
    per_option = None
    if budget < MIN_HEAD_BUDGET:
        per_option = max(MIN_OPTION_TOKENS, (reader.head_max_len - MIN_HEAD_BUDGET) // max(1, len(options)))
        options = [option[:per_option] for option in options]
        budget = reader.head_max_len - sum(map(len, options))
    kept = instructions[: max(MIN_HEAD_TOKENS, budget)]

    token_ids = [reader.cls, *kept, reader.sep]
    markers = []
    for option in options:
        markers.append(len(token_ids))
        token_ids.extend(option)
    token_ids.append(reader.sep)
    places: dict[tuple[int, ...], list[int]] = {}
    for i, option in enumerate(options):
        places.setdefault(option, []).append(i)
    return Head(
        token_ids=tuple(token_ids),
        markers=tuple(markers),
        question_type=TYPE_INDEX[question.type],
        instructions_dropped=len(instructions) - len(kept),
        options_cut=tuple(i for i, ids in enumerate(whole) if len(ids) + 1 > len(options[i])),
        per_option=per_option,
        distinct=len(places),
        alike=tuple(tuple(same) for same in places.values() if len(same) > 1),
    )


def fits(reader: Reader, head: Head) -> bool:
    """Whether every option's marker lies within the checkpoint's length."""
    return not head.markers or head.markers[-1] < reader.max_len


def row(reader: Reader, head: Head, state: State, question_id: str) -> tuple[Row, int]:
    """The row of a question about a state, and how many of the state's tokens it holds.

    Raises TooManyTokens, with the question's id, if the options alone do not fit.
    """
    if not fits(reader, head):
        inside = sum(marker < reader.max_len for marker in head.markers)
        raise TooManyTokens(
            f"Question '{words(question_id, 100)}', criteria: only {inside} of its {len(head.markers)} "
            f"options fit in the model's {reader.max_len} tokens; use fewer options."
        )
    room = max(0, reader.max_len - len(head.token_ids) - 1)
    ids = state.token_ids
    kept = ids[max(0, len(ids) - room) :] if state.keep_end else ids[:room]
    token_ids = (*head.token_ids, *kept, reader.sep)[: reader.max_len]
    return Row(token_ids, head.markers, head.question_type), len(kept)


def _described(name: str, value: Any) -> str:
    return name if _missing(value) else f"{name}: {text_of(value)}"


def _missing(value: Any) -> bool:
    # 0 and False are descriptions; only None and "" are none.
    return value is None or value == ""
