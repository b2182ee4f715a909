"""JSON as it leaves: compact UTF-8, names byte for byte as they came.

It knows RFC 8259. It must not know what a document says.
"""

import json
from typing import Any


def encode(document: Any) -> bytes:
    """The bytes of a JSON document. Raises ValueError for a number that JSON does not have."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
