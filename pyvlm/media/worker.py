"""A preprocessing worker: a process that decodes pictures into shared memory, and nothing else.

Started as `python -m pyvlm.media.worker CHANNEL SLAB LIFELINE PARENT` with three inherited
descriptors: a packet socket for messages (`worker_wire.py`), the slab, and the reading end of a
pipe that the parent never writes to. It imports neither the host's `__main__` nor the engine.

A picture's bytes lie at the start of the cell that its patches will fill. They are copied out
first, so what is decoded cannot change meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyvlm.errors import PyvlmError
from pyvlm.media.worker_wire import Message, header_from, receive, send

if TYPE_CHECKING:
    from pyvlm.media.transform import ImageTransform

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_NICE = 5
_OOM_SCORE = 500  # if the machine runs out of memory, a worker goes before the engine


def main(arguments: list[str]) -> None:
    channel_fd, slab_fd, lifeline, parent = map(int, arguments)
    _end_with_parent(lifeline, parent)
    channel = socket.socket(fileno=channel_fd)
    setup = receive(channel)
    if setup is None:
        return
    try:
        _limit(setup["memory_bytes"])
        bench = Bench(setup, slab_fd)
    except BaseException as error:
        send(channel, {"failed": _start_failure(error, setup["memory_bytes"])})
        return
    _confine()
    send(channel, {"ready": repr(bench.transform)})
    while (job := receive(channel)) is not None:
        send(channel, {"job": job["job"], **bench.run(job)})


class Bench:
    """The checkpoint's transform and the slab."""

    def __init__(self, setup: Message, slab_fd: int) -> None:
        # Imported here, so that whatever fails is reported.
        from pyvlm.files import read_if_any
        from pyvlm.media.decode import optional_formats
        from pyvlm.media.settings import load_transform
        from pyvlm.models.config import VisionConfig

        read = partial(read_if_any, Path(setup["checkpoint"]))
        self.transform: ImageTransform = load_transform(read, VisionConfig(**setup["vision"]))
        self._memory = mmap.mmap(slab_fd, setup["slab_bytes"])
        self._memory_bytes = int(setup["memory_bytes"])
        optional_formats()  # loads the plugins before the first picture
        os.close(slab_fd)

    def run(self, job: Message) -> Message:
        """Times, or the error of this picture."""
        index = int(job["index"])
        try:
            decoded, transformed = self._fill(job, index)
        except MemoryError:
            return {"error": self._too_large(index)}
        except PyvlmError as error:
            if isinstance(error.__context__, MemoryError):
                return {"error": self._too_large(index)}
            return {"error": [error.code, error.message, error.param]}
        except Exception as error:
            return {
                "error": [
                    "engine_failed",
                    f"image {index}: preprocessing it failed ({type(error).__name__})",
                    f"images[{index}]",
                ]
            }
        return {"decode_ms": decoded * 1e3, "transform_ms": transformed * 1e3}

    def _fill(self, job: Message, index: int) -> tuple[float, float]:
        """Seconds of decoding and of the transform."""
        import numpy as np

        from pyvlm.media.decode import decode_image

        start = time.perf_counter()
        offset = int(job["offset"])
        data = self._memory[offset : offset + int(job["num_bytes"])]
        picture = decode_image(data, header_from(job["header"]), index)
        decoded = time.perf_counter()
        out = np.ndarray(tuple(job["shape"]), np.float32, self._memory, offset)
        self.transform.apply(picture, out)
        return decoded - start, time.perf_counter() - decoded

    def _too_large(self, index: int) -> list[str]:
        gc.collect()
        return [
            "image_decode_failed",
            f"image {index}: preprocess_worker_bytes is {self._memory_bytes}, "
            "decoding it takes more",
            f"images[{index}]",
        ]


def _end_with_parent(lifeline: int, parent: int) -> None:
    """The kernel ends this process when the parent's end of the pipe closes, busy or not.

    SIGIO's default action is to terminate, so no Python code has to run. SIGKILL at the parent's
    death also ends a stopped worker. The pool ends its workers itself, so what a terminal or a
    service manager sends to the whole group is left to the parent.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent or select.select([lifeline], [], [], 0)[0]:
        sys.exit("the parent is gone")


def _limit(memory_bytes: int) -> None:
    """Private memory, not the slab: RLIMIT_DATA does not count shared mappings."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold people's pictures
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def _confine() -> None:
    """From here on: no file can be written, decoders' remarks on pictures reach no log, and the
    engine goes first. Starting up has the parent's priority: somebody waits for it."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.close(silent)


def _start_failure(error: BaseException, memory_bytes: int) -> list[str]:
    if isinstance(error, PyvlmError):
        return [error.code, error.message]
    # A library that finds no room for its data is an ImportError.
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return [
            "out_of_memory",
            f"a preprocessing worker cannot start: preprocess_worker_bytes is {memory_bytes}",
        ]
    return ["runtime_missing", f"a preprocessing worker cannot start: {error}"]


if __name__ == "__main__":
    main(sys.argv[1:])
