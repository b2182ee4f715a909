"""The OpenAPI document of the worker's HTTP surface.

It knows shapes and statuses. It must not know how anything is done.
"""

from typing import Any

from worker.settings import Settings


def describe(settings: Settings) -> dict[str, Any]:
    """OpenAPI 3.1, as it is true under these settings."""
    return {"openapi": "3.1.0", "info": {"title": "Laya worker", "version": "1"}, "paths": {}}
