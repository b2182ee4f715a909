"""The playground's files: what each is and the header fields that it leaves with.

It knows the files in worker/playground and what a browser may do with them. It must not know routes, Flask or
decisions: the page asks for those over HTTP as any client does.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("playground")
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts, styles and answers come from this server alone; nothing inline runs; and no script can turn a string into
# markup (trusted types), so that what someone typed stays text even if the page had a fault.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FIELDS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser asks each time whether its copy is still good, and gets 304: names carry no version.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file: its bytes, its media type, and its entity tag without quotes."""

    body: bytes
    media_type: str
    etag: str


def files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Every file of the page by name. Read once, at start: what is not among them cannot be asked for."""
    by_name = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            by_name[path.name] = PageFile(body, TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:32])
    return by_name
