"""The HTTP rows: a server per checkpoint, the same requests from `pyvlm bench serve` to each."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bench.systems.base import TIMEOUT_S, ChildError, Context, run_child

CLIENTS = 8
TOKENS = 64
SIDE = 512
POLL_S = 0.02


@runtime_checkable
class Serves(Protocol):
    """A system with an OpenAI-compatible server."""

    def server_command(self, port: int, *, untiled: bool) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    untiled: bool
    num_prompts: int
    image_fraction: float
    num_distinct: int = 0


SCENARIOS = (
    Scenario("text", untiled=True, num_prompts=24, image_fraction=0.0),
    Scenario("new", untiled=True, num_prompts=32, image_fraction=0.5),
    Scenario("repeated", untiled=True, num_prompts=32, image_fraction=0.5, num_distinct=4),
    Scenario("tiled", untiled=False, num_prompts=10, image_fraction=0.5),
)


def measure_serve(system: object, context: Context) -> dict[str, float]:
    """One server for the scenarios of one checkpoint, then one for the others'."""
    if not isinstance(system, Serves):
        raise ChildError("has no server")
    results: dict[str, dict[str, Any]] = {}
    values: dict[str, float] = {}
    for untiled in (True, False):
        with _server(system, context, untiled=untiled) as (port, ready_s):
            if untiled:
                values["serve_ready"] = ready_s
            for scenario in SCENARIOS:
                if scenario.untiled == untiled:
                    results[scenario.name] = _load(port, scenario, context)
    for name, result in results.items():
        if name != "text":
            values[f"http_{name}_rate"] = result["request_throughput"]
            values[f"http_{name}_ttft95"] = result["p95_ttft_ms"]
    quiet, busy = results["text"], results["new"]["by_kind"]["text"]
    values["itl_ratio"] = busy["p99_itl_ms"] / quiet["p99_itl_ms"]
    return values


def _load(port: int, scenario: Scenario, context: Context) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "pyvlm.cli.main", "bench", "serve", "--port", str(port), "--json",
        "--num-prompts", str(scenario.num_prompts), "--max-concurrency", str(CLIENTS),
        "--random-input-len", "64", "--random-output-len", str(TOKENS),
        "--image-fraction", str(scenario.image_fraction),
        "--num-distinct-images", str(scenario.num_distinct),
        "--random-mm-bucket-config", f"{{({SIDE}, {SIDE}, 1): 1.0}}",
    ]  # fmt: skip
    text = run_child(command, threads=context.threads)
    result: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    if result["failed"]:
        raise ChildError(f"{scenario.name}: requests failed: {result['errors']}")
    return result


@contextlib.contextmanager
def _server(system: Serves, context: Context, *, untiled: bool) -> Iterator[tuple[int, float]]:
    """Port, and seconds from start to ready."""
    port = _free_port()
    log = context.folder / "server.log"
    with log.open("w") as out:
        begin = time.perf_counter()
        process = subprocess.Popen(
            system.server_command(port, untiled=untiled), stdout=out, stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_until_ready(process, port, log)
            yield port, time.perf_counter() - begin
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ChildError(f"the server ended: {log.read_text()[-1000:]}")
        with contextlib.suppress(urllib.error.URLError, OSError):
            url = f"http://127.0.0.1:{port}/health"
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        time.sleep(POLL_S)
    raise ChildError("the server is not ready in time")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
