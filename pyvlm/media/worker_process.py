"""The pool's end of one worker: start it, talk to it, end it. Used by the pool's thread alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyvlm.errors import ERROR_CODES, PyvlmError
from pyvlm.media import worker_wire
from pyvlm.media.worker_wire import Message
from pyvlm.models.config import VisionConfig

_KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LC_", "LD_", "PYTHON", "ASAN_", "LSAN_", "MALLOC_", "GLIBC_")
_MAX_TEXT = 2000  # characters of a worker's message that are passed on


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs to build the checkpoint's transform."""

    checkpoint: Path
    vision: VisionConfig
    slab_fd: int
    slab_bytes: int
    memory_bytes: int


class WorkerProcess:
    """Owns the process, the channel, and the writing end of its lifeline.

    Must be created on a thread that lives as long as the worker may: the kernel takes the end of
    that thread for the end of the parent.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._channel.setblocking(False)
        try:
            worker_wire.send(self._channel, _first_message(setup))
            self._process = _spawn(theirs.fileno(), setup.slab_fd, lifeline)
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, message: Message) -> None:
        """A worker that is gone takes nothing; that it is gone is read from the channel."""
        try:
            worker_wire.send(self._channel, message)
        except (BrokenPipeError, ConnectionError):
            return

    def receive(self) -> Message | None:
        """None: it has ended, or what it says makes no sense, which ends it."""
        try:
            return worker_wire.receive(self._channel)
        except (OSError, ValueError):
            return None

    def kill(self) -> None:
        """The end of its channel tells when it is gone."""
        self._process.kill()

    def reap(self) -> int:
        """Ends it if need be, waits, closes everything; its exit status, negative for a signal."""
        self._process.kill()
        status = self._process.wait()
        self._close()
        return status

    def _close(self) -> None:
        self._channel.close()
        os.close(self._lifeline)


def failure_from(fields: object) -> PyvlmError:
    """The error that a worker reports. It has read hostile bytes: nothing is taken for granted."""
    code, message, param = (
        [*fields, None, None, None][:3] if isinstance(fields, list) else [None] * 3
    )
    if not isinstance(code, str) or code not in ERROR_CODES or not isinstance(message, str):
        return PyvlmError("a preprocessing worker sent a broken answer", code="engine_failed")
    return PyvlmError(
        message[:_MAX_TEXT],
        code=code,
        param=param[:_MAX_TEXT] if isinstance(param, str) else None,
    )


def _first_message(setup: WorkerSetup) -> Message:
    return {
        "checkpoint": str(setup.checkpoint.absolute()),
        "vision": asdict(setup.vision),
        "slab_bytes": setup.slab_bytes,
        "memory_bytes": setup.memory_bytes,
    }


def _spawn(channel: int, slab_fd: int, lifeline: int) -> subprocess.Popen[bytes]:
    """An entry module of ours by name, without the working directory on its path: neither the
    caller's script nor a file that lies about there is imported."""
    descriptors = (channel, slab_fd, lifeline)
    command = [sys.executable, "-P", "-m", "pyvlm.media.worker", *map(str, descriptors)]
    return subprocess.Popen(
        [*command, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=_environment(),
        cwd="/",
    )


def _environment() -> dict[str, str]:
    """Ours without what the host keeps there (keys, tokens), with the same import path."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENVIRONMENT or name.startswith(_KEPT_PREFIXES)
    }
    kept["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p and Path(p).is_absolute())
    kept["OPENBLAS_NUM_THREADS"] = kept["OMP_NUM_THREADS"] = "1"
    return kept
