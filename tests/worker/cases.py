"""Generated requests of every kind, the same for the same seed. Knows the contract's request form alone."""

from __future__ import annotations

import random
from typing import Any

# fmt: off
WORDS = [
    "parcel", "refund", "arrived", "crushed", "the", "buyer", "wants", "money", "back", "invoice", "order", "today",
    "customer", "says", "please", "never", "late", "rechnung", "größe", "返金", "注文", "환불", "배송", "🙂", "🎯",
    "naïve", "café", "[MASK]", "[SEP]", "[CLS]", "[PAD]", "</s>", "<s>", "{json}", '"quoted"', "tab\there",
    "new\nline", "def", "return", "self", "import", "class",
]
# fmt: on


class Cases:
    """A source of requests. `longest`: the most words of a state; the usual one overflows every budget."""

    def __init__(self, seed: int, longest: int = 600) -> None:
        self.random = random.Random(seed)
        self.longest = longest

    def text(self, most: int) -> str:
        count = self.random.choice((0, 1, 3, self.random.randint(1, max(1, most))))
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def structured(self, most: int) -> Any:
        kind = self.random.randrange(4)
        if kind == 0:
            return [self.text(most), {"note": self.text(3)}, 7]
        if kind == 1:
            return {"task": self.text(most), "include": [self.text(2), None, True], "größe": 1.5}
        return self.text(most)

    def state(self) -> Any:
        most = self.random.choice((5, 30, self.longest))
        kind = self.random.randrange(5)
        if kind == 0:
            return [{"role": "user", "text": self.text(most // 2)} for _ in range(self.random.randint(0, 6))]
        if kind == 1:
            return {"subject": self.text(4), "body": self.text(most), "n": self.random.random()}
        return self.text(most)

    def description(self) -> Any:
        return self.random.choice((None, "", self.text(4), self.text(90), self.structured(8)))

    def instructions(self) -> Any:
        found = self.structured(self.random.choice((8, 8, self.longest // 2)))
        return found if found and (not isinstance(found, str) or found.strip()) else "Which one?"

    def question(self) -> dict[str, Any]:
        kind = self.random.choice(("choice", "choice", "score", "noul"))
        question: dict[str, Any] = {"type": kind, "instructions": self.instructions()}
        if kind == "choice":
            count = self.random.choice((1, 2, 3, 5, 9, 20, self.random.randint(1, 60)))
            question["criteria"] = {f"{self.text(2)} {i}": self.description() for i in range(count)}
        elif kind == "score":
            count = self.random.randint(1, 10)
            question["criteria"] = [self.structured(10) for _ in range(count)]
        else:
            parts = {key: self.description() for key in ("true", "false") if self.random.random() < 0.6}
            question["criteria"] = self.random.choice((None, parts))
            if self.random.random() < 0.3:
                question["labels"] = {"true": "yes " + self.text(1), "false": "no"}
        return question

    def request(self) -> dict[str, Any]:
        count = self.random.choice((1, 1, 2, 4))
        questions = {f"q {i} {self.text(1)}": self.question() for i in range(count)}
        return {"state": self.state(), "questions": questions}
