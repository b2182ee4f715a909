"""The models that are served, by the names that requests use.

It knows names and aliases. It must not know how models are loaded, requests or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.decide import ServedModel
from worker.errors import UnknownModel
from worker.lane import Lane
from worker.settings import ALIASES


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model, and what GET /v1/models and GET /health say of it."""

    model: ServedModel
    description: str
    release_date: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served, the default first, and the lane that all models share."""

    entries: tuple[CatalogEntry, ...]
    lane: Lane

    def find(self, name: str | None) -> ServedModel:
        """The model of a name, an alias or an identity; the default for None. Raises UnknownModel."""
        if name is None or name in ALIASES:
            return self.entries[0].model
        for entry in self.entries:
            if name in (entry.model.name, entry.model.identity):
                return entry.model
        raise UnknownModel(name)

    def listing(self) -> list[dict[str, str]]:
        """The models as the contract lists them: each name, then the aliases of the default."""
        named = [(entry.model.name, entry) for entry in self.entries] + [
            (name, self.entries[0]) for name in ALIASES
        ]
        return [
            {
                "name": name,
                "description": entry.description
                if name == entry.model.name
                else f"Alias of {entry.model.name}. {entry.description}",
                "release_date": entry.release_date,
            }
            for name, entry in named
        ]
