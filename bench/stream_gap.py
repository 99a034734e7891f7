"""Gaps between the tokens of running streams, quiet and while pictures are admitted.

    python -m bench.stream_gap --model tiny
    python -m bench.stream_gap --model smolvlm-256m --rounds 3 --seconds 60 -- --max-num-seqs 8

Starts a server of its own. Each round measures a quiet phase and one in which clients ask about
pictures all the time. Where encoding is slower than preprocessing, that alone would let the workers
rest; so others send a picture together with a broken one: it is prepared for nothing, and pictures
wait for a worker all the time. The streams are the same in both:
greedy, restricted to a few ids that are whole words, so that each token is one event. A gap is the
time between two arrivals; tokens that arrive together are one. What follows `--` is for the server.
Exit status 1: in the median round the p99 under pictures exceeds twice the quiet one plus a step
budget.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.model import find_checkpoint
from bench.quiet import wait_until_quiet
from pyvlm.bench.pictures import random_jpeg
from tools.own_server import OwnServer, gauges_of

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
WORDS = " a b c d e"
HAS_TEXT = re.compile(rb'"content":"[^"]')
SAMPLE_S = 0.25  # between looks at the pool
SETTLE_S = 1.0  # of each phase are left out at its start
FOREIGN_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Milliseconds; `saturated` is the share of looks at which pictures waited for a worker."""

    num_gaps: int
    p50: float
    p99: float
    longest: float
    num_pictures: int  # requests whose pictures were admitted
    saturated: float


@dataclass(frozen=True, slots=True)
class Round:
    quiet: Phase
    pictures: Phase
    was_idle: bool  # the machine, before either phase

    @property
    def ratio(self) -> float:
        return self.pictures.p99 / self.quiet.p99

    def bound(self, step_budget_ms: float) -> float:
        return 2 * self.quiet.p99 + step_budget_ms


@dataclass(frozen=True, slots=True)
class Bodies:
    """Of requests, encoded in advance: making them takes the cores as well."""

    good: Sequence[bytes]
    broken: Sequence[bytes]


class Load:
    """One phase: streams that follow each other, and clients with pictures."""

    def __init__(self, client: httpx.AsyncClient, stream: bytes, bodies: Bodies) -> None:
        """`stream`: a whole HTTP request."""
        url = client.base_url
        self._address = url.host, url.port
        self._client = client
        self._stream = stream
        self._bodies = bodies
        self._gaps: list[float] = []
        self._looks: list[bool] = []
        self._num_pictures = 0
        self._from = self._until = 0.0

    async def run(self, seconds: float, num_streams: int, num_clients: tuple[int, int]) -> Phase:
        """`num_clients`: those with pictures to admit, and those with broken ones."""
        self._from = time.monotonic() + SETTLE_S
        self._until = self._from + seconds
        streams = [self._streams() for _ in range(num_streams)]
        admitted, broken = num_clients
        clients = [self._pictures(self._bodies.good, number, 200) for number in range(admitted)]
        clients += [self._pictures(self._bodies.broken, number, 400) for number in range(broken)]
        await asyncio.gather(*streams, *clients, self._look())
        if len(self._gaps) < 100:
            raise SystemExit(f"only {len(self._gaps)} gaps: --seconds is too short")
        p50, p99 = np.percentile(self._gaps, [50, 99])
        return Phase(
            len(self._gaps),
            round(float(p50), 2),
            round(float(p99), 2),
            round(max(self._gaps), 2),
            self._num_pictures,
            round(statistics.mean(self._looks), 2),
        )

    async def _streams(self) -> None:
        while time.monotonic() < self._until:
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                writer.write(self._stream)
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200 "):
                    raise SystemExit((await reader.read(1000)).decode())
                await self._read(reader)
            finally:
                writer.close()  # the server cancels what is left

    async def _read(self, reader: asyncio.StreamReader) -> None:
        before = None
        while data := await reader.read(1 << 16):
            if not HAS_TEXT.search(data):
                continue
            now = time.monotonic()
            if now > self._until:
                return
            if before is not None and before >= self._from:
                self._gaps.append(1e3 * (now - before))
            before = now

    async def _pictures(self, bodies: Sequence[bytes], turn: int, status: int) -> None:
        while time.monotonic() < self._until:
            body = bodies[turn % len(bodies)]
            response = await self._client.post(CHAT, content=body, headers=JSON)
            if response.status_code != status:
                raise SystemExit(response.text)
            self._num_pictures += status == 200
            turn += 1

    async def _look(self) -> None:
        while time.monotonic() < self._until:
            await asyncio.sleep(SAMPLE_S)
            page = gauges_of((await self._client.get("/metrics")).text)
            self._looks.append(page.get("pyvlm_image_queue_depth", 0) > 0)


async def measure(url: str, args: argparse.Namespace) -> list[Round]:
    limits = httpx.Limits(max_connections=args.clients + args.broken + 1)
    rounds = []
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        stream = await _stream_request(client, model, args.tokens)
        bodies = _picture_bodies(model, args)
        for _ in range(args.rounds):
            idle = await asyncio.to_thread(wait_until_quiet, FOREIGN_PERCENT, args.wait_quiet)
            quiet = await Load(client, stream, bodies).run(args.seconds, args.streams, (0, 0))
            await _idle(client)
            clients = args.clients, args.broken
            loaded = await Load(client, stream, bodies).run(args.seconds, args.streams, clients)
            await _idle(client)
            rounds.append(Round(quiet, loaded, idle))
            _print_round(rounds[-1], args.step_budget_ms)
    return rounds


async def _stream_request(client: httpx.AsyncClient, model: str, num_tokens: int) -> bytes:
    """For a bare socket: each read there is one arrival, whatever came together."""
    asked = {"prompt": WORDS, "add_special_tokens": False}
    ids = (await client.post("/tokenize", json=asked)).json()["tokens"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write letters."}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "logit_bias": {str(token_id): 100 for token_id in ids},
        "stream": True,
    }
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _picture_bodies(model: str, args: argparse.Namespace) -> Bodies:
    rng = np.random.default_rng(1)
    small = random_jpeg(rng, 64, 64)
    torn = small[: len(small) // 2]

    def pictures(count: int) -> list[bytes]:
        return [random_jpeg(rng, args.width, args.height) for _ in range(count)]

    return Bodies(
        [_body(model, pictures(args.pictures)) for _ in range(2 * args.clients)],
        [_body(model, [*pictures(1), torn]) for _ in range(args.broken)],
    )


def _body(model: str, pictures: Sequence[bytes]) -> bytes:
    content: list[dict[str, Any]] = [{"type": "text", "text": "What is this?"}]
    for jpeg in pictures:
        url = {"url": "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()}
        content.append({"type": "image_url", "image_url": url})
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 1}).encode()


async def _idle(client: httpx.AsyncClient) -> None:
    """What a phase left behind has ended."""
    while True:
        page = gauges_of((await client.get("/metrics")).text)
        if not page["pyvlm_requests_running"] and not page["pyvlm_requests_preparing"]:
            return
        await asyncio.sleep(0.1)


def _print_round(found: Round, budget: float) -> None:
    for name, phase in (("quiet", found.quiet), ("pictures", found.pictures)):
        print(
            f"{name:9} p50 {phase.p50:8.2f} ms  p99 {phase.p99:8.2f}  longest {phase.longest:8.2f}"
            f"  {phase.num_gaps} gaps, {phase.num_pictures} requests with pictures, "
            f"pictures waiting at {phase.saturated:.0%} of looks"
        )
    note = "" if found.was_idle else "  (the machine was not idle before)"
    print(f"  ratio {found.ratio:.2f}, bound {found.bound(budget):.1f} ms{note}", flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny", help="tiny, a checkpoint, or a shape to make")
    parser.add_argument("--checkpoints", type=Path, help="where shapes are made and kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--clients", type=int, default=4, help="that ask about pictures")
    parser.add_argument("--pictures", type=int, default=1, help="in each of their requests")
    parser.add_argument("--broken", type=int, default=3, help="clients with broken pictures")
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step-budget-ms", type=float, default=100)
    parser.add_argument("--wait-quiet", type=float, default=30, metavar="S",
                        help="longest wait before a round for an idle machine")  # fmt: skip
    parser.add_argument("server", nargs="*", help="after --: more arguments of pyvlm serve")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model
        if model != "tiny":
            model = str(find_checkpoint(model, args.checkpoints or Path(scratch)))
        own = ["--preprocess-workers", str(args.workers)]
        own += ["--step-budget-ms", str(args.step_budget_ms)]
        with OwnServer(model, *own, *args.server) as server:
            rounds = asyncio.run(measure(server.wait_until_ready(), args))
    middle = sorted(rounds, key=lambda found: found.ratio)[len(rounds) // 2]
    bound = middle.bound(args.step_budget_ms)
    is_kept = middle.pictures.p99 <= bound
    print(
        f"median round: quiet p99 {middle.quiet.p99:.2f} ms, with pictures "
        f"{middle.pictures.p99:.2f} ms, ratio {middle.ratio:.2f}; step budget "
        f"{args.step_budget_ms:g} ms, bound {bound:.1f} ms: {'kept' if is_kept else 'NOT KEPT'}"
    )
    if args.json:
        args.json.write_text(json.dumps([asdict(found) for found in rounds], indent=2))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
