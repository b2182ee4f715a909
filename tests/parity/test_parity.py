"""The corpus sent directly to two backends, through jevproxy, and through nginx with the shipped site before it.

Status, header fields that matter and body bytes are the same, or the difference is one that docs/http.md names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends import Backend
from tests.deploy import sites
from tests.parity import lenient
from tests.parity.corpus import CASES, ROUTES, Case
from tests.parity.differences import NGINX, OURS
from tests.parity.wire import Answer, ask
from tests.servers import ROOT, Program, free_port, start_jevproxy, start_nginx, status_of


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """The URL of the strict backend: gunicorn as it comes, away from jevproxy's gunicorn.conf.py."""
    url = f"http://127.0.0.1:{free_port()}"
    options = ["-b", url.removeprefix("http://"), "--pythonpath", str(ROOT), "--threads", "1"]
    argv = [sys.executable, "-m", "gunicorn", *options, "tests.parity.strict:application"]
    here = Path(__file__).parent
    with Program(argv, {}, url=url, ready=lambda: status_of(url) is not None, cwd=here) as running:
        yield running.url


@pytest.fixture(scope="module")
def lenient_backend() -> Iterator[str]:
    backend = Backend(lenient.serve)
    try:
        yield backend.url
    finally:
        backend.close()


@pytest.fixture(scope="module")
def before_strict(strict: str) -> Iterator[str]:
    with start_jevproxy(strict, OMNI_JEV_ROUTES=ROUTES) as proxy:
        yield proxy.url


@pytest.fixture(scope="module")
def before_lenient(lenient_backend: str) -> Iterator[Program]:
    with start_jevproxy(lenient_backend, OMNI_JEV_ROUTES=ROUTES) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def nginx(before_lenient: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx")
    port = free_port()
    site = sites.public_site(folder, port, [before_lenient.port])
    with start_nginx(folder, sites.configuration(folder, site), f"https://127.0.0.1:{port}") as running:
        yield running.url


def without_id(answer: Answer) -> Answer:
    """Ids of errors are new each time."""
    return replace(answer, body=re.sub(rb'("request_id":")[0-9a-f]{32}', rb"\1", answer.body))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_proxied_equals_direct(
    case: Case, strict: str, before_strict: str, lenient_backend: str, before_lenient: Program
) -> None:
    differed = False
    for backend, proxy in ((strict, before_strict), (lenient_backend, before_lenient.url)):
        direct, proxied = ask(backend, case.raw), ask(proxy, case.raw)
        if direct != proxied:
            assert case.name in OURS, (direct, proxied)
            OURS[case.name].check(direct, proxied)
            differed = True
    assert differed or case.name not in OURS, "no difference any more"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_shipped_site_changes_nothing_more(case: Case, before_lenient: Program, nginx: str) -> None:
    alone, behind = without_id(ask(before_lenient.url, case.raw)), without_id(ask(nginx, case.raw))
    if alone != behind:
        assert case.name in NGINX, (alone, behind)
        NGINX[case.name].check(alone, behind)
    assert alone != behind or case.name not in NGINX, "no difference any more"


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 120


def test_every_difference_is_documented() -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    names = {difference.name for difference in (*OURS.values(), *NGINX.values())}
    assert [name for name in sorted(names) if f"| {name} |" not in page] == []
