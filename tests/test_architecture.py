"""The import order is the architecture: a module imports only what stands before it in its package's list."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 350

# Lowest first. `gunicorn_conf` stands beside: it may import what any module may, and none imports it.
ORDER = {
    "jevproxy": [
        "errors", "settings", "notify", "headers", "sockets", "gunicorn_seam", "body", "client", "response", "idle",
        "connections", "transport", "upstream", "ended", "observe", "refusals", "slots", "deadlines", "exchange",
        "delivery", "transaction", "cors", "app", "wsgi",
    ],
    "worker": [
        "errors", "settings", "cores", "document", "encoding", "protocol", "rows", "option_parts", "usage", "buckets",
        "answers", "layouts", "tensors", "linears", "encoders", "model", "folder", "sources", "encoder_config",
        "checkpoint", "graphs", "engine", "turns", "lane", "decide", "batch", "catalog", "loading", "serving", "notify",
        "observe", "refusals", "heads", "connections", "restarts", "incoming", "server", "parent", "body", "admission",
        "openapi", "page", "responses", "views", "app", "wsgi", "remote", "files", "cli", "files.records",
        "files.answered", "files.deciders", "files.table", "files.output", "files.progress", "files.job",
        "files.preview", "files.command",
    ],
}  # fmt: skip
BESIDE = {"gunicorn_conf", "__main__", "compare"}

# Who may import what. A name that is not here is open to every module.
ONLY = {
    "torch": {
        "worker.layouts",
        "worker.tensors",
        "worker.linears",
        "worker.encoders",
        "worker.model",
        "worker.checkpoint",
        "worker.graphs",
        "worker.engine",
    },
    "transformers": {"worker.checkpoint"},
    "tokenizers": {"worker.folder"},
    "huggingface_hub": {"worker.sources"},
    "flask": {"jevproxy.app", "worker.app", "worker.responses", "worker.views"},
    "werkzeug": {"jevproxy.app", "worker.responses"},
    "flask_cors": {"jevproxy.cors"},
    "requests": {"jevproxy.upstream", "worker.remote", "jevproxy.compare"},
    "urllib3": {"jevproxy.connections"},
    "pyarrow": {"worker.files.records", "worker.files.table", "worker.files.output"},
    "gunicorn": {"jevproxy.gunicorn_seam", "jevproxy.notify"} | {"worker.server", "worker.parent"},
}
ENVIRONMENT = {"jevproxy.settings", "worker.settings"}

FILES = sorted(path for package in ORDER for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Dotted names of all that a module imports; `from a import b` counts as both `a` and `a.b`."""
    found: set[str] = set()
    package = name_of(path).split(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(part for part in (package if node.level else "", node.module or "") if part)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def modules_of(path: Path) -> set[str]:
    """Those of our own modules that it imports."""
    known = {name_of(file) for file in FILES}
    return {name for name in imports(path) if name in known and name not in ORDER} - {name_of(path)}


def test_there_is_something_to_check() -> None:
    assert {name_of(path) for path in FILES} >= {"jevproxy.app", "worker.app"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_downward(path: Path) -> None:
    package, _, module = name_of(path).partition(".")
    if not module:
        assert not modules_of(path), "a package's __init__ imports none of its modules"
        return
    assert module in ORDER[package] or module in BESIDE, f"{module} has no place in the import order"
    for imported in modules_of(path):
        owner, _, lower = imported.partition(".")
        assert owner == package, f"{package} and {owner} share nothing but HTTP"
        assert lower not in BESIDE, f"nothing imports {lower}"
        if module in ORDER[package]:
            assert ORDER[package].index(lower) < ORDER[package].index(module), (
                f"{imported} stands above {module}"
            )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_foreign_packages_stay_at_their_seam(path: Path) -> None:
    module = name_of(path)
    for top in {name.split(".")[0] for name in imports(path)}:
        assert module in ONLY.get(top, {module}), f"{top} is not for {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_environment_is_read_in_settings_alone(path: Path) -> None:
    read = {"os.environ", "os.environb", "os.getenv"}
    names = imports(path) | {
        ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    }
    assert name_of(path) in ENVIRONMENT or not names & read


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_says_what_it_knows_and_stays_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LIMIT
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module opens with what it knows"


def test_only_declared_packages_are_imported() -> None:
    """What an import names is in setup.cfg; what comes with a declared package is listed here with it."""
    declared = {
        "flask",
        "flask_cors",
        "gunicorn",
        "gevent",
        "requests",
        "urllib3",
        "prometheus_client",
        "torch",
        "transformers",
        "zstandard",
        "pyarrow",
        "tqdm",
    }
    with_them = {"werkzeug", "tokenizers", "safetensors", "huggingface_hub", "numpy"}
    known = declared | with_them | set(ORDER) | set(sys.stdlib_module_names)
    for path in FILES:
        assert {name.split(".")[0] for name in imports(path)} <= known, path
