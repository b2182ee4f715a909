"""Asks GET /health of a worker twice a second until standard input ends: the seconds of each answer, a line each.

python -m tests.bench.health URL
"""

from __future__ import annotations

import select
import sys
import time

from tests.servers import status_of


def main() -> None:
    url = sys.argv[1]
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        began = time.monotonic()
        if status_of(url) != 200:
            raise SystemExit(f"{url} is not healthy")
        print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
