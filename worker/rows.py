"""Token rows: what one question about one state becomes before it reaches the device.

It knows the sequence `[CLS] instructions [SEP] ([MASK] option)... [SEP] state [SEP]`, with every budget and cut of the
Laya format. It must not know JSON bodies, HTTP, torch or the kind of tokenizer: text becomes ids through one
function that it is given.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import TooManyTokens, words
from worker.protocol import QUESTION_TYPES, Question

# The format's constants, which the published checkpoints were trained with.
MAX_OPTION_TOKENS = 48
MIN_INSTRUCTION_BUDGET = 16
MIN_OPTION_TOKENS = 4
MIN_INSTRUCTION_TOKENS = 8
NOUL_DEFAULTS = ("no, the statement does not hold", "yes, the statement holds")


@dataclass(frozen=True, slots=True)
class Row:
    """One question about one state. Equal rows of one checkpoint have equal logits.

    `token_ids`: the whole sequence, without padding. `markers`: the position of each option's [MASK], in the
    options' order. `question_type`: the index in QUESTION_TYPES.
    """

    token_ids: tuple[int, ...]
    markers: tuple[int, ...]
    question_type: int


@dataclass(frozen=True, slots=True)
class Logits:
    """The model's output for a row, before any temperature.

    `options`: one logit for each marker. `actions`: the action head's logits.
    """

    options: tuple[float, ...]
    actions: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """How a checkpoint turns text into ids, and its budgets in tokens.

    `encode` adds and cuts nothing, `decode` shows ids as text; many threads may call both at once.
    `mask_text`: the mask token as text. `max_len`: of a row. `prompt_max_len`: of its instructions and options
    (`head_max_len` in a checkpoint's config).
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    cls: int
    sep: int
    mask: int
    mask_text: str
    max_len: int
    prompt_max_len: int

    def ids(self, text: str) -> list[int]:
        """The ids of a client's `text`. The mask token in it becomes a space: only options have markers."""
        return self.encode(text.replace(self.mask_text, " "))


@dataclass(frozen=True, slots=True)
class Prompt:
    """The part of a row that the question alone decides, instructions and options, and what the budget cut from it.

    `instruction_tokens_dropped`: tokens cut from the instructions. `options_cut`: the indices of options that lost
    tokens. `tokens_per_option`: the tokens to which all options were cut, mask included; None when they were not.
    `distinct_options`: how many options still differ. `indistinguishable`: groups of options that no longer do.
    """

    token_ids: tuple[int, ...]
    markers: tuple[int, ...]
    question_type: int
    instruction_tokens_dropped: int
    options_cut: tuple[int, ...]
    tokens_per_option: int | None
    distinct_options: int
    indistinguishable: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TokenizedState:
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
    given = [(criteria or {}).get(key) for key in ("false", "true")]
    descriptions = [
        default if _missing(value) else text_of(value)
        for value, default in zip(given, NOUL_DEFAULTS, strict=True)
    ]
    return [f"{label}: {text}" for label, text in zip(question.labels, descriptions, strict=True)]


def tokenize_state(tokenizer: Tokenizer, state: Any) -> TokenizedState:
    """The ids of a whole state; each row takes as many as it has room for."""
    return TokenizedState(tuple(tokenizer.ids(text_of(state))), isinstance(state, list))


def tokenize_question(tokenizer: Tokenizer, question: Question, texts: Sequence[str] | None = None) -> Prompt:
    """The prompt of a question; `texts` replaces its option texts, for a row that has only some of them."""
    texts = option_texts(question) if texts is None else texts
    instructions = tokenizer.encode(
        f"{question.type} question: " + text_of(question.instructions).replace(tokenizer.mask_text, " ")
    )
    whole = [tokenizer.ids(" " + text) for text in texts]
    options = [(tokenizer.mask, *ids[:MAX_OPTION_TOKENS]) for ids in whole]
    budget = tokenizer.prompt_max_len - sum(map(len, options))
    tokens_per_option = None
    if budget < MIN_INSTRUCTION_BUDGET:
        shared = tokenizer.prompt_max_len - MIN_INSTRUCTION_BUDGET
        tokens_per_option = max(MIN_OPTION_TOKENS, shared // max(1, len(options)))
        options = [option[:tokens_per_option] for option in options]
        budget = tokenizer.prompt_max_len - sum(map(len, options))
    fitting = instructions[: max(MIN_INSTRUCTION_TOKENS, budget)]

    token_ids = [tokenizer.cls, *fitting, tokenizer.sep]
    markers = []
    for option in options:
        markers.append(len(token_ids))
        token_ids.extend(option)
    token_ids.append(tokenizer.sep)
    indices: dict[tuple[int, ...], list[int]] = {}
    for i, option in enumerate(options):
        indices.setdefault(option, []).append(i)
    return Prompt(
        token_ids=tuple(token_ids),
        markers=tuple(markers),
        question_type=QUESTION_TYPES.index(question.type),
        instruction_tokens_dropped=len(instructions) - len(fitting),
        options_cut=tuple(i for i, ids in enumerate(whole) if len(ids) + 1 > len(options[i])),
        tokens_per_option=tokens_per_option,
        distinct_options=len(indices),
        indistinguishable=tuple(tuple(same) for same in indices.values() if len(same) > 1),
    )


def fits(tokenizer: Tokenizer, prompt: Prompt) -> bool:
    """Whether every option's marker lies within the checkpoint's length."""
    return not prompt.markers or prompt.markers[-1] < tokenizer.max_len


def build_row(
    tokenizer: Tokenizer, prompt: Prompt, state: TokenizedState, question_id: str
) -> tuple[Row, int]:
    """The row of a question about a state, and how many of the state's tokens it holds.

    Raises TooManyTokens, with the question's id, if the options alone do not fit.
    """
    if not fits(tokenizer, prompt):
        inside = sum(marker < tokenizer.max_len for marker in prompt.markers)
        raise TooManyTokens(
            f"Question '{words(question_id, 100)}', criteria: only {inside} of its {len(prompt.markers)} "
            f"options fit in the model's {tokenizer.max_len} tokens; use fewer options."
        )
    room = max(0, tokenizer.max_len - len(prompt.token_ids) - 1)
    ids = state.token_ids
    fitting = ids[max(0, len(ids) - room) :] if state.keep_end else ids[:room]
    token_ids = (*prompt.token_ids, *fitting, tokenizer.sep)[: tokenizer.max_len]
    return Row(token_ids, prompt.markers, prompt.question_type), len(fitting)


def _described(name: str, value: Any) -> str:
    return name if _missing(value) else f"{name}: {text_of(value)}"


def _missing(value: Any) -> bool:
    # 0 and False are descriptions; only None and "" are none.
    return value is None or value == ""
