"""Mixed requests from many clients against a running server; every one must end as it should.

    pyvlm serve tiny &
    python -m tools.soak --url http://127.0.0.1:8000 --requests 1000 --clients 16 --repeats 3

Text and pictures, streamed or not, bad pictures, clients that leave, prompts that are too long,
wrong fields, drawn with a seed. Good answers must equal those that the same server gave one at a
time before. After each repeat the server's gauges must be back at zero; its memory is printed.
With --pid also: as many open descriptors in the server and its children after each repeat as before
the first.
Exit status 1: something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageDraw

PATH = "/v1/chat/completions"
IDLE = (
    "pyvlm_http_active",  # counts generations; the scrape is none
    "pyvlm_ledger_bytes",
    "pyvlm_requests_preparing",
    "pyvlm_requests_waiting",
    "pyvlm_requests_running",
    "pyvlm_image_bytes_in_flight",
    "pyvlm_image_leases",
    "pyvlm_kv_positions_used",
)
_SETTLE_S = 30
_BUSY = (429,)  # a right outcome of any request: it is sent again


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its right outcome: a status and, for good ones, the text."""

    name: str
    body: dict[str, Any]
    status: int = 200
    code: str | None = None
    leaves: bool = False


@dataclass
class Result:
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    num_busy: int = 0


def make_cases(random_: random.Random, model: str) -> list[Case]:
    """The good requests are few, so that each answer is compared many times."""
    cases = []
    for number in range(8):
        text = random_.choice(["Tell me", "What is", "Write"]) + f" {random_.randrange(50)}."
        cases.append(_good(f"text {number}", text, random_, model))
    for number in range(8):
        colours = random_.choices(["red", "green", "blue", "black"], k=random_.choice([1, 1, 1, 2]))
        content = [*map(_image_part, colours), {"type": "text", "text": "What colour is it?"}]
        cases.append(_good(f"picture {number}", content, random_, model))
    broken = {"url": "data:image/png;base64," + base64.b64encode(b"no picture").decode()}
    bad = [{"type": "image_url", "image_url": broken}]
    return [
        *cases,
        Case(
            "picture choices",
            _body(model, [_image_part("red"), _image_part("blue")], n=3, seed=5, max_tokens=8),
        ),
        Case("bad picture", _body(model, bad), 400, "image_decode_failed"),
        Case("too long", _body(model, "word " * 5000), 400, "context_overflow"),
        Case("wrong field", _body(model, "x", n=0), 400, "invalid_parameter"),
        Case("unknown field", _body(model, "x", zork=1), 400, "unsupported_parameter"),
        Case("leaves text", _body(model, "Tell me.", n=2), leaves=True),
        Case("leaves picture", _body(model, [_image_part("red")], stream=True), leaves=True),
    ]


async def soak(url: str, *, seed: int, num_requests: int, num_clients: int) -> Result:
    random_ = random.Random(seed)
    async with httpx.AsyncClient(
        base_url=url, timeout=300, limits=httpx.Limits(max_connections=num_clients)
    ) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        cases = make_cases(random_, model)
        quiet = {case.name: await _text(client, case) for case in cases if _is_good(case)}
        result = Result()
        queue = [random_.choice(cases) for _ in range(num_requests)]
        start = time.monotonic()
        workers = [
            _client(client, queue, quiet, result, random.Random(seed * 1000 + i))
            for i in range(num_clients)
        ]
        await asyncio.gather(*workers)
        result.seconds = time.monotonic() - start
        await _check_idle(client, result)
    if sum(result.outcomes.values()) != num_requests:
        result.problems.append(f"{sum(result.outcomes.values())} outcomes")
    return result


async def _client(
    client: httpx.AsyncClient,
    queue: list[Case],
    quiet: dict[str, str],
    result: Result,
    random_: random.Random,
) -> None:
    while queue:
        case = queue.pop()
        try:
            if case.leaves:
                await _leave(client, case, random_)
            else:
                await _expect(client, case, quiet, result)
        except (httpx.HTTPError, AssertionError, ValueError) as error:
            result.problems.append(f"{case.name}: {type(error).__name__}: {error}")
        result.outcomes[case.name.split()[0]] += 1


async def _expect(
    client: httpx.AsyncClient, case: Case, quiet: dict[str, str], result: Result
) -> None:
    response = await client.post(PATH, json=case.body)
    while response.status_code in _BUSY:
        assert "retry-after" in response.headers
        result.num_busy += 1
        await asyncio.sleep(0.05)
        response = await client.post(PATH, json=case.body)
    assert response.status_code == case.status, response.text[:300]
    if case.code is not None:
        assert response.json()["error"]["code"] == case.code, response.text[:300]
    else:
        assert text_of(response) == quiet[case.name], "the answer differs from the quiet one"


async def _leave(client: httpx.AsyncClient, case: Case, random_: random.Random) -> None:
    task = asyncio.ensure_future(client.post(PATH, json=case.body))
    await asyncio.sleep(random_.random() * 0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _text(client: httpx.AsyncClient, case: Case) -> str:
    response = await client.post(PATH, json=case.body)
    assert response.status_code == 200, response.text[:300]
    return text_of(response)


def text_of(response: httpx.Response) -> str:
    if not response.headers["content-type"].startswith("text/event-stream"):
        return "\n".join(c["message"]["content"] for c in response.json()["choices"])
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]", "the stream has no end mark"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def _check_idle(client: httpx.AsyncClient, result: Result) -> None:
    deadline = time.monotonic() + 60
    while left := {n: v for n, v in (await gauges(client)).items() if n in IDLE and v}:
        if time.monotonic() > deadline:
            result.problems.append(f"not given back: {left}")
            return
        await asyncio.sleep(0.1)


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    return {m[1]: float(m[2]) for m in re.finditer(r"^(pyvlm_\w+) (\S+)$", text, re.M)}


def memory_bytes(pid: int) -> int:
    """Resident private memory of a process and its children."""
    total = 0
    for folder in _family(pid):
        try:
            found = re.search(r"^RssAnon:\s+(\d+)", (folder / "status").read_text(), re.M)
        except OSError:
            continue
        total += int(found[1]) * 1024 if found else 0
    return total


class Watched:
    """What a server process holds open, before the first repeat and after each."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._num_fds = count_entries(pid, "fd")

    def problems(self) -> list[str]:
        """Connections that have ended are given back a moment later."""
        deadline = time.monotonic() + _SETTLE_S
        while count_entries(self._pid, "fd") > self._num_fds and time.monotonic() < deadline:
            time.sleep(0.1)
        now = count_entries(self._pid, "fd")
        return [] if now == self._num_fds else [f"{now} open descriptors, {self._num_fds} before"]

    def __str__(self) -> str:
        fds, threads = count_entries(self._pid, "fd"), count_entries(self._pid, "task")
        return f", {memory_bytes(self._pid) >> 20} MiB, {fds} descriptors, {threads} threads"


def count_entries(pid: int, name: str) -> int:
    """Of /proc/PID/fd or /proc/PID/task, over a process and its children."""
    total = 0
    for folder in _family(pid):
        try:
            total += sum(1 for _ in (folder / name).iterdir())
        except OSError:
            continue
    return total


def _family(pid: int) -> list[Path]:
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [folder for folder in folders if int(folder.name) == pid or _parent(folder) == pid]


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _is_good(case: Case) -> bool:
    return case.status == 200 and not case.leaves


def _good(name: str, content: Any, random_: random.Random, model: str) -> Case:
    fields: dict[str, Any] = {
        "seed": random_.randrange(1000),
        "temperature": random_.choice([0, 1.0]),
        "max_tokens": random_.choice([1, 8, 24]),
        "stream": random_.random() < 0.5,
    }
    return Case(name, _body(model, content, **fields))


def _body(model: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def _image_part(colour: str) -> dict[str, Any]:
    image = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(image).ellipse((40, 40, 150, 150), fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pid", type=int, help="the server's process, to look at what it holds")
    args = parser.parse_args(argv)
    watched = Watched(args.pid) if args.pid else None
    has_failed = False
    for repeat in range(args.repeats):
        result = asyncio.run(
            soak(args.url, seed=args.seed, num_requests=args.requests, num_clients=args.clients)
        )
        if watched is not None:
            result.problems += watched.problems()
        held = "" if watched is None else str(watched)
        told = ", ".join(f"{count} {name}" for name, count in sorted(result.outcomes.items()))
        print(f"repeat {repeat}: {result.seconds:.1f} s, {told}, {result.num_busy} x 429{held}")
        for problem in result.problems[:20]:
            print(f"  {problem}")
        has_failed |= bool(result.problems)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
