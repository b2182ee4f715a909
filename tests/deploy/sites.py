"""The shipped nginx files made into whole configurations: ports and paths are substituted, nothing else.

A substitution whose text is not in the file fails, so that the files cannot drift from the tests.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers import ROOT

NGINX = ROOT / "deploy" / "nginx"


def substituted(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"not in the shipped file: {old}"
        text = text.replace(old, new)
    return text


def certificate(folder: Path) -> Path:
    """A self-signed certificate for localhost; its key lies beside it as key.pem."""
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    files = ["-addext", names, "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return folder / "cert.pem"


def public_site(folder: Path, port: int, proxies: list[int], **more: str) -> str:
    """deploy/nginx/jevproxy.conf on a port of loopback, with a certificate made for it."""
    certificate(folder)
    servers = "\n    ".join(f"server 127.0.0.1:{proxy} max_fails=1 fail_timeout=2s;" for proxy in proxies)
    return substituted(
        (NGINX / "jevproxy.conf").read_text(),
        {
            "    listen [::]:443 ssl http2;\n": "",
            "listen 443 ssl http2": f"listen 127.0.0.1:{port} ssl http2",
            "server 127.0.0.1:8080 max_fails=1 fail_timeout=2s;": servers,
            "/etc/jevproxy/tls/fullchain.pem": str(folder / "cert.pem"),
            "/etc/jevproxy/tls/privkey.pem": str(folder / "key.pem"),
            "/var/log/nginx/jevproxy.log": str(folder / "access.log"),
            **more,
        },
    )


def inner_site(port: int, workers: list[int]) -> str:
    """deploy/nginx/jevworkers.conf on a port of loopback."""
    assert len(workers) == 3, "the shipped file has three"
    changes = {f"127.0.0.1:{8000 + i}": f"127.0.0.1:{worker}" for i, worker in enumerate(workers)}
    return substituted(
        (NGINX / "jevworkers.conf").read_text(), {"127.0.0.1:8100": f"127.0.0.1:{port}", **changes}
    )


def configuration(folder: Path, *sites: str) -> str:
    """A whole configuration, as a distribution's nginx.conf makes it of conf.d and sites-enabled."""
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    common = (NGINX / "jev-common.conf").read_text()
    return (
        f"user root;\npid {folder}/nginx.pid;\nworker_processes 1;\nevents {{ worker_connections 4096; }}\n"
        f"http {{\n{places}{common}\n" + "\n".join(sites) + "\n}\n"
    )
