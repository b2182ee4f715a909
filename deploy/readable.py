"""An answer laid out for a person: numbers rounded to four decimals, `x_` additions left out, short lines.

    curl ... | python3 deploy/readable.py

Four decimals hold on every processor but for the last digit, which may differ by one. The full answer has all digits.
Knows JSON and nothing of its meaning. Needs only the standard library.
"""

from __future__ import annotations

import json
import sys
from typing import Any

DECIMALS = 4


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items() if not name.startswith("x_")}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _written(value: Any, indent: str) -> str:
    """JSON; an object stands on one line unless it holds another object."""
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + "  "
    lines = (
        f"{deeper}{json.dumps(name, ensure_ascii=False)}: {_written(item, deeper)}"
        for name, item in value.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def readable(answer: Any) -> str:
    return _written(_rounded(answer), "")


def main() -> int:
    text = sys.stdin.read()
    try:
        print(readable(json.loads(text)))
    except ValueError:
        print(text or "no answer came: is `make run` still running?", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
