"""jevproxy beside proxies of the same shape: CPU microseconds a request, requests a second, p50.

One run, interleaved rounds, the proxy on one core, wrk and the backend (nginx, one constant decision) on the other.
Compare the ratios, not the times: the machine is shared. Run by `tox -e bench -- tests/bench/test_proxy.py`; needs
wrk and nginx. JEVPROXY_BENCH_SECONDS (4) and JEVPROXY_BENCH_ROUNDS (3) set how long it takes.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.servers import BIN, Program, free_port, listens, start_nginx

PEERS = Path(__file__).parent / "peers"
RUST = PEERS / "rust_frontend" / "target" / "release" / "rust_frontend"
SECONDS = int(os.environ.get("JEVPROXY_BENCH_SECONDS", "4"))
ROUNDS = int(os.environ.get("JEVPROXY_BENCH_ROUNDS", "3"))
CONNECTIONS = (1, 16)
TICK = os.sysconf("SC_CLK_TCK")
PROXY_CORE, LOAD_CORE = "0", "1"
GUNICORN = [sys.executable, "-m", "gunicorn", "-k", "gevent"]


@dataclass(frozen=True)
class Sample:
    cpu_us: float
    per_second: float
    p50_ms: float


def process_tree(pid: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                children.append(int(entry.name))
    return [pid, *[found for child in children for found in process_tree(child)]]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children, from fields 14 and 15 of /proc/PID/stat."""
    ticks = 0
    for process in process_tree(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK


def milliseconds(text: str) -> float:
    value, unit = re.fullmatch(r"([0-9.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(value) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


def measure(proxy: Program, connections: int) -> Sample:
    before = cpu_seconds(proxy.pid)
    load = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "--latency", "-s", PEERS / "request.lua"]
    run = subprocess.run(
        ["taskset", "-c", LOAD_CORE, *load, f"{proxy.url}/v1/systemone"], capture_output=True, text=True
    )
    said = run.stdout
    assert run.returncode == 0, f"{run.stderr}\n{said}\n{proxy.output()}"
    used = cpu_seconds(proxy.pid) - before
    assert "Non-2xx" not in said and "Socket errors" not in said, said
    requests = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    p50 = re.search(r"^ +50% +(\S+)", said, re.MULTILINE)[1]  # type: ignore[index]
    return Sample(used / requests * 1e6, requests / SECONDS, milliseconds(p50))


def proxies(backend: str) -> dict[str, tuple[list[str | Path], str]]:
    """Command line and port of each proxy."""
    ports = {name: str(free_port()) for name in ("plain_flask", "bare_wsgi", "uvicorn", "aiohttp", "rust")}
    own = str(free_port())
    found: dict[str, tuple[list[str | Path], str]] = {
        "jevproxy": ([*GUNICORN, "-c", "python:jevproxy.gunicorn_conf", "jevproxy.wsgi"], own),
        "plain_flask": (
            [*GUNICORN, "-b", f"127.0.0.1:{ports['plain_flask']}", "--chdir", PEERS, "plain_flask:app"],
            ports["plain_flask"],
        ),
        "bare_wsgi": (
            [*GUNICORN, "-b", f"127.0.0.1:{ports['bare_wsgi']}", "--chdir", PEERS, "bare_wsgi:app"],
            ports["bare_wsgi"],
        ),
        "uvicorn_httpx": (
            [BIN / "uvicorn", "--no-access-log", "--port", ports["uvicorn"], "--app-dir", PEERS, "uvicorn_httpx:app"],
            ports["uvicorn"],
        ),
        "aiohttp_proxy": ([sys.executable, PEERS / "aiohttp_proxy.py", ports["aiohttp"]], ports["aiohttp"]),
    }  # fmt: skip
    if RUST.exists():
        found["rust_frontend"] = ([RUST, f"127.0.0.1:{ports['rust']}", backend], ports["rust"])
    return found


def nginx_of(folder: Path, name: str, ports: dict[str, int]) -> Program:
    """nginx with a configuration of the yardsticks'; it serves the last port that is named."""
    folder.mkdir()
    for part in ("body", "proxy", "f", "u", "s"):
        (folder / part).mkdir()
    site = (PEERS / name).read_text()
    for written, port in ports.items():
        site = site.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
    return start_nginx(folder, site, f"http://127.0.0.1:{list(ports.values())[-1]}")


def pin(pid: int, core: str) -> None:
    for process in process_tree(pid):
        os.sched_setaffinity(process, {int(core)})


def test_proxy_table(tmp_path: Path) -> None:
    assert shutil.which("wrk"), "wrk is needed: apt-get install wrk"
    backend_port = free_port()
    backend = f"http://127.0.0.1:{backend_port}"
    samples: dict[tuple[str, int], list[Sample]] = {}
    with ExitStack() as stack:
        nginx = stack.enter_context(
            nginx_of(tmp_path / "backend", "nginx_backend.conf", {"8000": backend_port})
        )
        pin(nginx.pid, LOAD_CORE)
        running = {}
        for name, (argv, port) in proxies(backend).items():
            url = f"http://127.0.0.1:{port}"
            settings = {"OMNI_JEV_BACKEND_URL": backend, "OMNI_JEV_BIND": f"127.0.0.1:{port}"}
            pinned = ["taskset", "-c", PROXY_CORE, *argv]
            running[name] = stack.enter_context(
                Program(pinned, settings, url=url, ready=lambda url=url: listens(url), cwd=tmp_path)  # type: ignore[misc]
            )
        ports = {"8000": backend_port, "8090": free_port()}
        running["nginx"] = stack.enter_context(nginx_of(tmp_path / "proxy", "nginx_proxy.conf", ports))
        pin(running["nginx"].pid, PROXY_CORE)
        for _ in range(ROUNDS):
            for name, proxy in running.items():
                for connections in CONNECTIONS:
                    samples.setdefault((name, connections), []).append(measure(proxy, connections))
    print(
        f"\n{os.cpu_count()} cores; {ROUNDS} rounds of {SECONDS} s; medians; ratio to plain_flask of the same round"
    )
    print("| proxy | connections | CPU us/request | ratio (min to max) | requests/s | p50 ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (name, connections), found in samples.items():
        plain = samples["plain_flask", connections]
        ratios = sorted(mine.cpu_us / theirs.cpu_us for mine, theirs in zip(found, plain, strict=True))
        middle = [
            statistics.median(getattr(s, field) for s in found) for field in Sample.__dataclass_fields__
        ]
        print(
            f"| {name} | {connections} | {middle[0]:.0f} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {middle[1]:.0f} | {middle[2]:.2f} |"
        )
