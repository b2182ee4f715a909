"""The names that requests may use: the operator's own for a known model, aliases, and the identity of what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker import loading
from worker.errors import UnknownModel
from worker.lane import Lane
from worker.settings import read


@pytest.mark.usefixtures("torch_threads")
def test_a_known_model_is_served_under_the_name_that_clients_pin(tiny_bert: Path) -> None:
    settings = read(
        {"LAYA_MODELS": f"small={tiny_bert},jev-1.13.0=demo", "LAYA_DEVICE": "cpu", "LAYA_THREADS": "1"}
    )
    catalog = loading.load(settings, Lane())
    pinned = catalog.find("jev-1.13.0")
    assert pinned.name == "jev-1.13.0"
    assert pinned.identity.startswith("jev-1.13.0@")
    assert catalog.find(pinned.identity) is pinned
    for name in (None, "small", "jev-latest", "jev-preview"):
        assert catalog.find(name) is catalog.entries[0].model
    for name in ("demo", "jev-1.13", ""):
        with pytest.raises(UnknownModel):
            catalog.find(name)
    listed = {model["name"]: model["description"] for model in catalog.listing()}
    assert list(listed) == ["small", "jev-1.13.0", "jev-latest", "jev-preview"]
    assert listed["jev-1.13.0"] == loading.EMBEDDED_WORDS
