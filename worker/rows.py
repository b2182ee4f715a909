"""Token rows: what one question about one state becomes before it reaches the device.

It knows the sequence `[CLS] head [SEP] ([MASK] option)... [SEP] state [SEP]` with every budget and cut of the
Laya format. It must not know JSON bodies, HTTP, torch or a tokenizer's kind: text becomes ids through one
function that it is given.
"""

from dataclasses import dataclass

# The question type's index, as the checkpoint's type embedding and temperatures are ordered.
CHOICE, SCORE, NOUL = 0, 1, 2


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
