"""The alert rules and the dashboard speak of metrics and labels that both programs really have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.client import ask
from tests.load import decide
from tests.servers import ROOT, Program

MONITORING = ROOT / "deploy" / "monitoring"
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]


def exposed(url: str) -> set[str]:
    """Names of all series."""
    status, fields, body = ask(url, "GET", "/metrics")
    assert status == 200 and fields["Content-Type"].startswith("text/plain")
    return {re.split(r"[{ ]", line)[0] for line in body.decode().splitlines() if line and line[0] != "#"}


@pytest.fixture(scope="module")
def names(deployed: Program, embedded_worker: Program) -> set[str]:
    assert decide(deployed.url)[0] == 200
    assert ask(deployed.url, "GET", "/nothing")[0] == 404
    return exposed(deployed.url) | exposed(embedded_worker.url)


def named(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:jevproxy|laya)_\w+\b(?=[{\[ )]|$)", expression))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_uses_what_there_is(rule: dict[str, Any], names: set[str]) -> None:
    assert named(rule["expr"]) <= names
    assert rule["for"] and rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_uses_what_there_is(panel: dict[str, Any], names: set[str]) -> None:
    for target in panel["targets"]:
        assert named(target["expr"]) and named(target["expr"]) <= names


def test_every_alert_is_in_the_operators_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert f"`{rule['alert']}`" in page


def test_the_operators_page_lists_the_metrics_that_there_are(names: set[str]) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"`((?:jevproxy|laya)_[a-z_]+)[`{]", page))
    own = {
        name for name in names if name.startswith(("jevproxy_", "laya_")) and not name.endswith("_created")
    }
    assert listed == {re.sub(r"_(bucket|count|sum)$", "", name) for name in own}
