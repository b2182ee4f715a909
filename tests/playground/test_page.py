"""The playground's files as a client gets them: header fields, caching, and where they are not served."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from email.message import Message

import pytest

from tests.servers import Program
from worker import page
from worker.settings import read

# What the page may weigh, all its files together, as they lie in the repository.
LIMIT = 60 * 1024


def get(url: str, **fields: str) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(
        url, headers={name.replace("_", "-"): value for name, value in fields.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_the_page_is_small_and_asks_nobody_else() -> None:
    files = page.files()
    assert sum(len(file.body) for file in files.values()) < LIMIT
    assert {path.name for path in page.FOLDER.iterdir()} == set(files)
    for name, file in files.items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"[a-z]+://|['\"`(]//", text), f"{name} names an address"
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
        ):
            assert word not in text, name


@pytest.mark.parametrize("name", [None, *page.files()])
def test_each_file_has_its_type_and_the_policy(
    embedded_worker: Program, deployed: Program, name: str | None
) -> None:
    path = f"/playground/{name}" if name else "/playground"
    file = page.files()[name or page.INDEX]
    for program in (embedded_worker, deployed):
        status, fields, body = get(program.url + path)
        assert (status, body, fields["Content-Type"]) == (200, file.body, file.media_type)
        policy = fields["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert fields["X-Content-Type-Options"] == "nosniff" and fields["Referrer-Policy"] == "no-referrer"
        assert fields["Cache-Control"] == "no-cache"
        again = get(program.url + path, If_None_Match=fields["ETag"])
        assert again[0] == 304 and again[2] == b"", "a copy that is still good is not sent again"


def test_nothing_else_is_served(embedded_worker: Program, deployed: Program) -> None:
    for path in ("/playground/", "/playground/no.js", "/playground/%2e%2e/page.py", "/playground/x/dom.js"):
        assert {get(program.url + path)[0] for program in (embedded_worker, deployed)} == {404}


@pytest.mark.parametrize(
    ("host", "set_to", "shown"),
    [
        ("", "", True),
        ("localhost", "", True),
        ("[::1]", "", True),
        ("127.0.0.2", "", True),
        ("0.0.0.0", "", False),
        ("::", "", False),
        ("host.example", "", False),
        ("0.0.0.0", "1", True),
        ("127.0.0.1", "off", False),
    ],
)
def test_it_is_there_for_this_machine_alone_where_nobody_says_else(
    host: str, set_to: str, shown: bool
) -> None:
    assert read({"LAYA_HOST": host, "LAYA_PLAYGROUND": set_to}).shows_playground is shown


def test_where_it_is_off_there_is_no_page() -> None:
    from worker.app import create_app
    from worker.observe import Metrics
    from worker.serving import Serving

    client = create_app(read({"LAYA_PLAYGROUND": "0"}), Serving(), Metrics()).test_client()
    assert client.get("/playground").status_code == client.get("/playground/dom.js").status_code == 404
