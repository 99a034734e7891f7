"""`pyvlm serve` as a child process, for the commands that measure or kill one."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

COMMAND = (sys.executable, "-m", "pyvlm.cli.main", "serve")
READY_S = 1800.0  # the first start compiles the model
_LISTENING = re.compile(r"listening on (http://[\d.:]+)")
_SAMPLE = re.compile(r"^(pyvlm_\w+) (\S+)$", re.M)


class OwnServer:
    """A context manager; leaving it kills the process. A thread reads what it says."""

    def __init__(self, model: str, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [*COMMAND, model, "--port", "0", *arguments], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def status(self) -> int | None:
        return self._child.poll()

    def wait_until_ready(self) -> str:
        """Its address, as soon as it serves."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self._child.poll() is None:
            found = _LISTENING.search("\n".join(self.lines))
            if found and _is_ready(found[1]):
                return found[1]
            time.sleep(0.05)
        raise SystemExit("the server did not start:\n" + "\n".join(self.lines[-20:]))

    def kill(self) -> None:
        """With signal 9; returns when it is gone."""
        self._child.kill()
        self._child.wait()
        self._reader.join(10)

    def _read(self) -> None:
        if self._child.stderr is not None:
            with self._child.stderr as lines:
                self.lines.extend(line.rstrip("\n") for line in lines)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def gauges_of(text: str) -> dict[str, float]:
    """The samples without labels of a /metrics page."""
    return {found[1]: float(found[2]) for found in _SAMPLE.finditer(text)}


# --- what the kernel says -------------------------------------------------------------------------


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def stat(pid: int) -> list[str]:
    """Fields after the name: state, parent, ...; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    return bool(stat(pid)) and stat(pid)[:1] not in (["Z"], ["X"])


def workers_of(parent: int) -> list[int]:
    """The preprocessing workers among its children."""

    def is_worker(pid: int) -> bool:
        try:
            return b"pyvlm.media.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False

    return [pid for pid in processes() if stat(pid)[1:2] == [str(parent)] and is_worker(pid)]


def slab_of(pid: int) -> str:
    """The inode of the slab that it maps; empty for none."""
    return next((fields[4] for fields in _slab_mappings(pid)), "")


def size_of_slab(pid: int) -> int:
    """Bytes of the slab that it maps, all of them reserved; 0 for none."""
    ends = []
    for addresses, _, offset, *_ in _slab_mappings(pid):
        begin, end = (int(address, 16) for address in addresses.split("-"))
        ends.append(int(offset, 16) + end - begin)
    return max(ends, default=0)


def _slab_mappings(pid: int) -> list[list[str]]:
    """Addresses, rights, offset, device, inode, ... of each."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    return [line.split() for line in lines if "memfd:pyvlm-slab" in line]


def shared_memory() -> int:
    """Bytes, of the whole machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no Shmem in /proc/meminfo")


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("it never came to that")
        time.sleep(0.002)
