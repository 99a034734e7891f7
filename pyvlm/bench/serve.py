"""`pyvlm bench serve`: from options to a finished run."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TextIO

import aiohttp

from pyvlm.bench.load import LoadRun, due_times
from pyvlm.bench.options import Schedule, Target, Workload
from pyvlm.bench.statistics import summarize
from pyvlm.bench.workload import make_requests
from pyvlm.errors import PyvlmError

POLL_S = 0.25
PROGRESS_S = 0.1


@dataclass(frozen=True, slots=True)
class ServeBench:
    target: Target  # model "": the first one that the server lists
    workload: Workload
    schedule: Schedule
    num_warmups: int = 1
    percentiles: tuple[float, ...] = (50.0, 95.0, 99.0)
    goodput_ms: dict[str, float] = field(default_factory=dict)
    ready_timeout_s: float = 0.0


def run_bench(
    bench: ServeBench, run: LoadRun, *, progress: TextIO | None = None
) -> tuple[ServeBench, dict[str, Any]]:
    """Fills `run`; if it is interrupted, the result covers what has ended."""
    bench = replace(bench, target=asyncio.run(_find_model(bench.target, bench.ready_timeout_s)))
    warmups = make_requests(bench.target, bench.workload, count=bench.num_warmups, stream=1)
    requests = make_requests(bench.target, bench.workload)
    due = due_times(bench.schedule, len(requests), bench.workload.seed)
    show = _Progress(progress, len(requests))

    async def everything() -> None:
        await run.warm_up(bench.target, warmups)
        await run.run(bench.target, requests, due, bench.schedule.max_concurrency, show)

    interrupted = False
    try:
        asyncio.run(everything())
    except KeyboardInterrupt:
        interrupted = True
    show.close()
    return bench, _result(bench, run, interrupted)


def _result(bench: ServeBench, run: LoadRun, interrupted: bool) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "url": bench.target.url,
        "model": bench.target.model,
        "backend": bench.target.backend,
        "request_rate": str(bench.schedule.request_rate),
        "burstiness": bench.schedule.burstiness,
        "max_concurrency": bench.schedule.max_concurrency,
        "workload": asdict(bench.workload),
        "num_warmups": bench.num_warmups,
        "interrupted": interrupted,
        "duration": run.duration,
        "max_concurrent_requests": run.max_running,
        **summarize(run.records, run.duration, bench.percentiles, bench.goodput_ms),
    }


async def _find_model(target: Target, timeout_s: float) -> Target:
    """Waits until the server lists its models."""
    deadline = time.monotonic() + timeout_s
    url = target.base_url.rstrip("/") + "/v1/models"
    while True:
        problem, names = await _list_models(url, target)
        if names and not problem:
            return replace(target, model=target.model or names[0])
        if time.monotonic() >= deadline:
            raise PyvlmError(f"{url}: {problem}", code="device_unavailable")
        await asyncio.sleep(POLL_S)


async def _list_models(url: str, target: Target) -> tuple[str, list[str]]:
    try:
        async with (
            aiohttp.ClientSession(headers=dict(target.headers)) as session,
            session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response,
        ):
            if response.status != 200:
                return f"HTTP status {response.status}", []
            names = [str(model["id"]) for model in (await response.json())["data"]]
            return "" if names else "the server lists no model", names
    except TimeoutError:
        return "no answer within 10 s", []
    except (aiohttp.ClientError, OSError) as error:
        return f"the server cannot be reached ({type(error).__name__})", []
    except (ValueError, KeyError, TypeError):
        return "the answer is no list of models", []


class _Progress:
    """One line, rewritten; nothing where there is no terminal to rewrite it on."""

    def __init__(self, stream: TextIO | None, total: int) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._total = total
        self._shown = 0.0
        self._failed = 0

    def __call__(self, run: LoadRun) -> None:
        self._failed += not run.records[-1].is_ok
        now = time.monotonic()
        if self._stream is None or now - self._shown < PROGRESS_S:
            return
        self._shown = now
        done = len(run.records)
        bar = "#" * (30 * done // self._total)
        text = f"[{bar:30}] {done}/{self._total}, {run.num_running} running, {self._failed} failed"
        self._stream.write("\r" + text + "  ")
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.write("\r" + " " * 79 + "\r")
            self._stream.flush()


def progress_stream(disabled: bool) -> TextIO | None:
    return None if disabled else sys.stderr
