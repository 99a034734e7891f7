"""What kill -9 costs a server under load, over HTTP: `python -m tools.serve_kill9`.

Clients send a fixed set of requests about pictures and texts, again and again. First, preprocessing
workers are killed one after the other: requests lost (only what a killed worker held may be, and
nobody else's answer may differ, no connection may break), time until the next worker is ready. Then
the server itself is killed: workers and shared memory left, and whether the next one starts without
a warning and answers as before. Exits with 1 if anything is not as it must be, and says what.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from pyvlm.bench.pictures import random_jpeg
from tools.own_server import (
    OwnServer,
    gauges_of,
    is_running,
    processes,
    shared_memory,
    size_of_slab,
    slab_of,
    until,
    workers_of,
)

PATH = "/v1/chat/completions"
MIB = 1 << 20
LIMIT_S = 180.0
SLACK_MIB = 4  # the kernel's count lags by some pages for each CPU
_TROUBLE = re.compile("warning|error|critical|traceback", re.I)  # levels, and Python's own words
_IDLE = (
    "pyvlm_http_active",
    "pyvlm_ledger_bytes",
    "pyvlm_requests_preparing",
    "pyvlm_requests_waiting",
    "pyvlm_requests_running",
    "pyvlm_image_leases",
    "pyvlm_slab_leased_bytes",
)


@dataclass
class Load:
    """Clients that ask until they are told to stop. Outcomes by name."""

    url: str
    bodies: dict[str, bytes]
    expected: dict[str, str]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    is_over: bool = False

    async def run(self, num_clients: int) -> None:
        limits = httpx.Limits(max_connections=num_clients)
        async with httpx.AsyncClient(base_url=self.url, timeout=LIMIT_S, limits=limits) as client:
            await asyncio.gather(*(self._ask(client, number) for number in range(num_clients)))

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        names = list(self.bodies)
        while not self.is_over:
            name = names[number % len(names)]
            number += 1
            try:
                response = await _post(client, self.bodies[name])
            except httpx.TransportError:
                self.outcomes["cut off"] += 1  # right only if the server is killed
                return
            self._note(name, response)

    def _note(self, name: str, response: httpx.Response) -> None:
        if response.status_code == 200 and _text(response) == self.expected[name]:
            self.outcomes["right"] += 1
        elif response.status_code == 500 and _code(response) == "engine_failed":
            self.outcomes["lost"] += 1
            if name.startswith("text"):
                self.wrong.append(f"{name}: lost, though it has no picture")
        else:
            self.wrong.append(f"{name}: {response.status_code} {response.text[:200]}")


async def _post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.post(PATH, content=body, headers={"content-type": "application/json"})


def _text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def _code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def _bodies() -> dict[str, bytes]:
    """Large enough that decoding them takes a worker its time."""
    rng = np.random.default_rng(3)
    bodies = {}
    for number in range(6):
        jpeg = base64.b64encode(random_jpeg(rng, 1600, 1200)).decode()
        url = {"url": f"data:image/jpeg;base64,{jpeg}"}
        ask: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": url},
            {"type": "text", "text": "What is this?"},
        ]
        bodies[f"picture {number}"] = _body(ask)
    for number in range(2):
        bodies[f"text {number}"] = _body(f"Tell me about {number}.")
    return bodies


def _body(content: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    asked = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12}
    return json.dumps(asked).encode()


async def _quiet(url: str, bodies: dict[str, bytes]) -> dict[str, str]:
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        answers = {name: await _post(client, body) for name, body in bodies.items()}
    for answer in answers.values():
        answer.raise_for_status()
    return {name: _text(answer) for name, answer in answers.items()}


async def _gauges(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text
    found = gauges_of(page)
    return found | {"restarts": found.get("pyvlm_image_worker_restarts_total", 0.0)}


async def _kill_workers(server: OwnServer, load: Load, args: argparse.Namespace) -> dict[str, Any]:
    clients = asyncio.create_task(load.run(args.clients))
    recovery = []
    async with httpx.AsyncClient(base_url=load.url, timeout=LIMIT_S) as client:
        for kill in range(args.kills):
            while (await _gauges(client))["pyvlm_image_running"] < args.workers:
                _check(clients)
                await asyncio.sleep(0.01)
            os.kill(workers_of(server.pid)[0], signal.SIGKILL)
            killed = time.monotonic()
            while True:
                now = await _gauges(client)
                if now["restarts"] > kill and now["pyvlm_image_workers"] == args.workers:
                    break
                _check(clients)
                await asyncio.sleep(0.01)
            recovery.append(time.monotonic() - killed)
        load.is_over = True
        await clients
        left = await _left(client)
    return {
        "kills": args.kills,
        "requests": sum(load.outcomes.values()),
        "requests lost": load.outcomes["lost"],
        "requests cut off": load.outcomes["cut off"],
        "wrong answers": len(load.wrong),
        "not given back": left,
        "until the next worker is ready, ms: median": round(1e3 * statistics.median(recovery)),
        "longest": round(1e3 * max(recovery)),
    }


async def _left(client: httpx.AsyncClient) -> dict[str, float]:
    """What the requests still hold, at the end of a patient wait."""
    end = time.monotonic() + 30
    while True:
        left = {name: v for name, v in (await _gauges(client)).items() if name in _IDLE and v}
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(0.1)


def _check(clients: asyncio.Task[None]) -> None:
    if clients.done():
        clients.result()
        raise SystemExit("the clients ended early")


async def _kill_server(server: OwnServer, load: Load, args: argparse.Namespace) -> dict[str, Any]:
    clients = asyncio.create_task(load.run(args.clients))
    async with httpx.AsyncClient(base_url=load.url, timeout=LIMIT_S) as client:
        while (await _gauges(client))["pyvlm_image_running"] < args.workers:
            _check(clients)
            await asyncio.sleep(0.01)
    workers, slab, before = workers_of(server.pid), slab_of(server.pid), shared_memory()
    num_bytes, early = size_of_slab(server.pid), load.outcomes["cut off"]
    server.kill()
    killed = time.monotonic()
    await clients
    until(lambda: not any(map(is_running, workers)))
    took = time.monotonic() - killed
    holders = [pid for pid in processes() if slab_of(pid) == slab]
    given_back = await _given_back(before, num_bytes)
    return {
        "requests in hand": args.clients,
        "requests cut off before": early,
        "requests lost": load.outcomes["lost"],
        "wrong answers": len(load.wrong),
        "workers": len(workers),
        "workers left": sum(map(is_running, workers)),
        "until the last worker ended, ms": round(1e3 * took),
        "processes with its slab": len(holders),
        "slab, MiB": round(num_bytes / MIB),
        "shared memory given back, MiB": round(given_back / MIB),
    }


async def _given_back(before: int, expected: int) -> int:
    """Bytes of the whole machine, where others take and give too: waits a while for `expected`."""
    end = time.monotonic() + 10
    while (given := before - shared_memory()) < expected and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return given


def _serve(args: argparse.Namespace) -> OwnServer:
    return OwnServer("tiny", "--preprocess-workers", str(args.workers))


def run(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    bodies = _bodies()
    with _serve(args) as server:
        url = server.wait_until_ready()
        expected = asyncio.run(_quiet(url, bodies))
        load = Load(url, bodies, expected)
        workers = asyncio.run(_kill_workers(server, load, args))
        after = asyncio.run(_quiet(url, bodies)) == expected
        last = Load(url, bodies, expected)
        killed = asyncio.run(_kill_server(server, last, args))
    begin = time.monotonic()
    with _serve(args) as server:
        url = server.wait_until_ready()
        ready = time.monotonic() - begin
        again = asyncio.run(_quiet(url, bodies)) == expected
        warnings = [line for line in server.lines if _TROUBLE.search(line)]
    for problem in [*load.wrong, *last.wrong, *warnings][:20]:
        print(problem, file=sys.stderr)
    following = {
        "ready after, ms": round(1e3 * ready),
        "answers as before": again,
        "warnings": len(warnings),
    }
    workers["answers afterwards as before"] = after
    return {"workers killed": workers, "server killed": killed, "next start": following}


def problems(found: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it must be, in words; `found` is of `run`."""
    workers, killed, following = found.values()
    must = {
        "more requests lost than workers killed": workers["requests lost"] <= workers["kills"],
        "connections broke when workers were killed": not workers["requests cut off"],
        "wrong answers when workers were killed": not workers["wrong answers"],
        "requests left something behind": not workers["not given back"],
        "other answers after workers were killed": workers["answers afterwards as before"],
        "connections broke before the server was killed": not killed["requests cut off before"],
        "requests lost that no killed worker held": not killed["requests lost"],
        "wrong answers before the server was killed": not killed["wrong answers"],
        "workers outlive the server": not killed["workers left"],
        "the slab outlives the server": not killed["processes with its slab"],
        "shared memory is not given back": (
            killed["shared memory given back, MiB"] >= killed["slab, MiB"] - SLACK_MIB
        ),
        "the next server answers otherwise": following["answers as before"],
        "the next server warns": not following["warnings"],
    }
    return [name for name, is_so in must.items() if not is_so]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    found = run(parser.parse_args())
    print(json.dumps(found, indent=2))
    wrong = problems(found)
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
