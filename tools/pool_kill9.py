"""What kill -9 costs the preprocessing pool: `python -m tools.pool_kill9`.

First, workers are killed under load, one after the other: jobs lost (only those that the killed
worker held may be), time until another worker is ready, leases left. Then a process with a loaded
pool is killed: workers and shared memory left. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from pyvlm.errors import PyvlmError
from pyvlm.media.decode import admit_images
from pyvlm.media.lease import PatchLease
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.pool import PreprocessPool
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.preprocessor import MIB, Picture, PoolOptions
from pyvlm.models.config import VisionConfig
from pyvlm.models.parse import parse_config, read_config
from tools.own_server import (
    is_running,
    processes,
    shared_memory,
    slab_of,
    until,
    workers_of,
)

TINY = Path(__file__).parents[1] / "pyvlm" / "assets" / "tiny"
LIMIT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        _be_the_host(arguments.workers)
        return 0
    workers = _kill_workers(arguments.workers, arguments.kills)
    parent = _kill_parent(arguments.workers)
    print(json.dumps({"workers killed": workers, "parent killed": parent}, indent=2))
    sound = workers["jobs lost"] <= workers["kills"] and workers["wrong patches"] == 0
    return 0 if sound and parent["workers left"] == parent["processes with its slab"] == 0 else 1


def _start(num_workers: int) -> PreprocessPool:
    options = PoolOptions(num_workers=num_workers, slab_bytes=64 * MIB)
    pool = PreprocessPool(TINY, _vision(), options)
    pool.start()
    return pool


def _vision() -> VisionConfig:
    vision = parse_config(read_config(TINY)).vision
    if vision is None:
        raise SystemExit("the tiny model takes pictures; this one does not")
    return vision


def _picture() -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG")
    return out.getvalue()


def _kill_workers(num_workers: int, num_kills: int) -> dict[str, int]:
    pool, data = _start(num_workers), _picture()
    (header,) = admit_images([data], MediaPolicy())
    picture = Picture(data, header, 0)
    expected = preprocess_image(data, header, pool.transform).patches
    jobs: list[Future[PatchLease]] = []
    recovery = []
    for kill in range(num_kills):
        for _ in range(40 - pool.stats().num_queued):
            jobs += pool.submit_all([picture])
        until(lambda: pool.stats().num_running == num_workers)  # so the one killed holds a job
        os.kill(workers_of(os.getpid())[0], signal.SIGKILL)
        killed = time.monotonic()
        until(lambda kill=kill: pool.stats().num_restarts > kill)
        until(lambda: pool.stats().num_workers == num_workers)
        recovery.append(time.monotonic() - killed)
    outcomes = Counter(_outcome(job, expected) for job in jobs)
    num_jobs = len(jobs)
    jobs.clear()
    until(lambda: pool.leases() == [])
    pool.close()
    return {
        "kills": num_kills,
        "jobs": num_jobs,
        "jobs lost": outcomes["lost"],
        "wrong patches": outcomes["wrong"],
        "recovery ms, median": round(1e3 * statistics.median(recovery)),
        "recovery ms, longest": round(1e3 * max(recovery)),
        "children left": len(workers_of(os.getpid())),
    }


def _outcome(job: Future[PatchLease], expected: npt.NDArray[np.float32]) -> str:
    error = job.exception(LIMIT_S)
    if isinstance(error, PyvlmError) and error.code == "engine_failed":
        return "lost"
    with job.result() as lease:
        return "right" if np.array_equal(lease.patches.patches, expected) else "wrong"


def _kill_parent(num_workers: int) -> dict[str, int]:
    """Of a pool that is busy. Its workers are looked for by their ids, its slab by its inode."""
    command = [sys.executable, "-m", __spec__.name, "--host", "--workers", str(num_workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        if host.stdout is None or host.stdout.readline() != "busy\n":
            raise SystemExit("the host did not start")
        workers = workers_of(host.pid)
        slab = slab_of(host.pid)
        before = shared_memory()
        host.kill()
        host.wait()
    killed = time.monotonic()
    until(lambda: not any(map(is_running, workers)))
    took = time.monotonic() - killed
    holders = [pid for pid in processes() if slab_of(pid) == slab]
    time.sleep(0.2)
    return {
        "workers": len(workers),
        "workers left": sum(map(is_running, workers)),
        "until the last worker ended, ms": round(1e3 * took),
        "processes with its slab": len(holders),
        "shared memory given back, MiB": round((before - shared_memory()) / MIB),
    }


def _be_the_host(num_workers: int) -> None:
    pool, data = _start(num_workers), _picture()
    (header,) = admit_images([data], MediaPolicy())
    (kept, *jobs) = [pool.submit_all([Picture(data, header, 0)])[0] for _ in range(41)]
    lease = kept.result(LIMIT_S)
    print("busy", flush=True)
    for job in jobs:
        job.result(LIMIT_S)
    time.sleep(LIMIT_S)
    lease.release()


if __name__ == "__main__":
    sys.exit(main())
