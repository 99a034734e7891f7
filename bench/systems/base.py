"""What every system needs to know, and how it runs its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TIMEOUT_S = 1200
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Context:
    """`checkpoint` cuts pictures into tiles; `untiled` has the same weights and does not."""

    checkpoint: Path
    untiled: Path
    folder: Path  # for converted models
    threads: int
    llama_cpp: Path | None  # of build_llama_cpp.sh
    torch_python: str  # an interpreter with torch and transformers


class System(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def sections(self) -> frozenset[str]: ...

    def prepare(self) -> None:
        """Converts or compiles what is needed; before anything is timed."""

    def measure(self, section: str) -> dict[str, float]:
        """Values by row name."""


class ChildError(Exception):
    pass


def run_child(command: Sequence[str | Path], *, threads: int) -> str:
    """Standard output, then standard error, of a process that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=_environment(threads), check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise ChildError(f"{Path(command[0]).name} failed:\n{done.stderr[-2000:]}")
    return done.stdout + "\n" + done.stderr


def run_worker(
    module: str, arguments: Sequence[str | Path], *, threads: int, python: str = sys.executable
) -> dict[str, Any]:
    """The last line that a Python worker prints is its result."""
    text = run_child([python, "-m", module, *arguments], threads=threads)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def peak_pss_mib(command: Sequence[str | Path], *, threads: int) -> float:
    """Polled: the proportional set size of the process, children apart."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        env=_environment(threads),
    )  # fmt: skip
    peak = 0.0
    timer = threading.Timer(TIMEOUT_S, process.kill)
    timer.start()
    while process.poll() is None:
        peak = max(peak, pss_mib(process.pid))
        time.sleep(POLL_S)
    timer.cancel()
    if process.returncode != 0:
        raise ChildError(f"{Path(command[0]).name} failed with status {process.returncode}")
    return peak


def pss_mib(pid: int) -> float:
    """0 once the process has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(found[0]) / 1024 if found else 0.0


def _environment(threads: int) -> dict[str, str]:
    """Runtimes that are told their threads by the environment are told here."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
