"""What the kernel says about processes, descriptors and shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

PROC = Path("/proc")


def workers_of(pid: int | None = None) -> list[int]:
    """Preprocessing workers whose parent is `pid`, this process by default."""
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit() and _parent(folder) == (pid or os.getpid()):
            command = _read(folder / "cmdline").split(b"\0")
            if b"pyvlm.media.worker" in command:
                found.append(int(folder.name))
    return sorted(found)


def is_running(pid: int) -> bool:
    """False for a zombie: who inherits an orphan may be slow to bury it."""
    status = _read(PROC / str(pid) / "stat")
    return bool(status) and status.rpartition(b") ")[2][:1] not in (b"Z", b"X")


def state_of(pid: int) -> str:
    return _read(PROC / str(pid) / "stat").rpartition(b") ")[2][:1].decode()


def stop(pid: int) -> None:
    """Stopped for certain, not just told to."""
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) not in ("T", ""):
        os.sched_yield()


def open_files() -> int:
    return len(list((PROC / "self" / "fd").iterdir()))


def threads() -> int:
    return len(list((PROC / "self" / "task").iterdir()))


def children(pid: int | None = None) -> list[int]:
    """Zombies included."""
    return [
        int(folder.name)
        for folder in PROC.iterdir()
        if folder.name.isdigit() and _parent(folder) == (pid or os.getpid())
    ]


def mapping_slabs() -> set[int]:
    """Processes that hold or map a slab."""
    return {
        int(folder.name)
        for folder in PROC.iterdir()
        if folder.name.isdigit() and b"memfd:pyvlm-slab" in _read(folder / "maps")
    }


def _parent(folder: Path) -> int:
    fields = _read(folder / "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
