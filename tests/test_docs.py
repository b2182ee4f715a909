"""What the documentation says is true: links, settings, commands, and the answer that the README shows."""

from __future__ import annotations

import configparser
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import jevproxy.settings
import worker.settings
from jevproxy import headers
from tests.servers import ROOT, Program
from tests.tables import PROXY_PREFIX, WORKER_PREFIX, proxy_rows, worker_rows
from tests.test_architecture import ORDER
from tests.test_dependencies import declared

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get, by the usual rule."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text()), target


@pytest.mark.parametrize(
    ("prefix", "rows"),
    [(PROXY_PREFIX, proxy_rows()), (WORKER_PREFIX, worker_rows())],
    ids=["jevproxy", "worker"],
)
def test_the_settings_tables_are_the_code(prefix: str, rows: list[str]) -> None:
    shown = [line for line in TEXTS["docs/settings.md"].splitlines() if re.match(rf"\| {prefix}", line)]
    assert shown == rows, "write it anew: python -m tests.tables"


def test_companions_of_longer_times_are_what_is_shipped() -> None:
    """Every number in the section's table is the default of what stands before it, and each is above its time."""
    section = TEXTS["docs/settings.md"].partition("### Longer times")[2].partition("## worker")[0]
    shown = dict(re.findall(r"([A-Z_]{5,}|TimeoutStopSec|proxy_read_timeout)[^|(]*?\((\d+)\)", section))
    defaults = {knob.variable: knob.default for knob in jevproxy.settings.KNOBS}
    for variable in ("OMNI_JEV_TIMEOUT", "OMNI_JEV_STREAM_IDLE", "OMNI_JEV_DRAIN"):
        assert shown[variable] == defaults[variable]
    unit = (ROOT / "deploy/systemd/jevproxy.service").read_text()
    assert f"\nTimeoutStopSec={shown['TimeoutStopSec']}\n" in unit
    for site in ("jevproxy", "jevworkers"):
        text = (ROOT / f"deploy/nginx/{site}.conf").read_text()
        waits = re.findall(r"proxy_(?:read|send)_timeout (\d+)s;", text)
        assert waits == [shown["proxy_read_timeout"]] * 2, site
    assert int(shown["OMNI_JEV_TIMEOUT"]) < int(shown["OMNI_JEV_DRAIN"]) < int(shown["TimeoutStopSec"])


@pytest.mark.parametrize("name", TEXTS)
def test_variables_that_are_named_exist(name: str) -> None:
    known = {knob.variable for knob in (*jevproxy.settings.KNOBS, *worker.settings.KNOBS)}
    assert set(re.findall(r"\b(?:OMNI_JEV|LAYA)_[A-Z_]*[A-Z]\b", TEXTS[name])) <= known


@pytest.mark.parametrize("name", TEXTS)
def test_commands_that_are_named_exist(name: str) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    environments = set(re.findall(r"\w+", " ".join(tox.sections()) + tox["tox"]["env_list"]))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:tox|deploy/test) -e (\w+)", TEXTS[name])) <= environments
    assert set(re.findall(r"`make (\w+)", TEXTS[name])) <= targets
    for path in re.findall(r"`((?:deploy|docs|tests|jevproxy|worker|\.ci)/[\w./@-]+)`", TEXTS[name]):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", TEXTS)
def test_modules_and_options_that_are_named_exist(name: str) -> None:
    for module in re.findall(r"python -m ([\w.]+)", TEXTS[name]):
        assert importlib.util.find_spec(module), module
    for script, words in re.findall(r"deploy/(install|uninstall|roll|run)((?: [\w.-]+)*)", TEXTS[name]):
        source = (ROOT / "deploy" / script).read_text()
        for option in re.findall(r" (--[\w-]+)", words):
            assert f'"{option}"' in source, f"deploy/{script} {option}"


@pytest.mark.parametrize("name", TEXTS)
def test_no_path_of_one_machine_is_named(name: str) -> None:
    assert not re.findall(r"/(?:root|home|work|tmp)/\w+", TEXTS[name])


def test_the_architecture_page_has_every_module_and_dependency() -> None:
    page = TEXTS["docs/architecture.md"]
    listed = re.findall(r"^\| `([\w.]+)` \|", page, re.M)
    assert listed == [module for order in ORDER.values() for module in order]
    for name in declared():
        assert re.search(rf"^\| {name} \|", page, re.M | re.I), name


NUMBER = re.compile(r"\d+\.\d+")


def test_the_readme_answer_is_the_real_one(deployed: Program) -> None:
    """The first ```console block: one command, then what it prints. The fourth decimal may differ by one."""
    block = re.search(r"```console\n\$ (.+?)\n(\{.+?\n\}\n)```", TEXTS["README.md"], re.S)
    assert block
    command = block[1].replace("http://127.0.0.1:8080", deployed.url)
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert NUMBER.sub("N", done.stdout) == NUMBER.sub("N", block[2]), done.stdout
    shown, real = (list(map(float, NUMBER.findall(text))) for text in (block[2], done.stdout))
    assert real == pytest.approx(shown, rel=0, abs=1.01e-4), done.stdout


def test_the_readme_question_is_the_file() -> None:
    block = re.search(r"```json\n(.+?)```", TEXTS["README.md"], re.S)
    assert block and block[1] == (ROOT / "docs" / "request.json").read_text()


def test_the_readme_shows_every_top_level_name() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in {Path(line).parts[0] for line in listed.splitlines()}:
        assert f"`{name}" in TEXTS["README.md"], name


def test_the_fields_that_do_not_cross_are_listed() -> None:
    """docs/http.md names every field that `to_backend` drops, and no other."""
    item = re.search(r"^- \*\*These fields do not cross:\*\*(.+?)^- ", TEXTS["docs/http.md"], re.M | re.S)
    assert item
    named = {name.lower() for name in re.findall(r"\b[A-Z][\w-]+", item[1])}
    kept = [name for name, _ in headers.to_backend([(name, "x") for name in named], "id")]
    assert kept == ["X-Request-Id"] and named >= headers.HOP_BY_HOP | {
        "expect",
        "content_length",
        "transfer_encoding",
    }
