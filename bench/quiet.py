"""Is anything else using the cores? Timings on a busy machine are worth nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot over all cores; `own` is this process with the children it waited for."""

    at: float
    busy: float
    steal: float
    own: float

    @classmethod
    def now(cls) -> CpuTimes:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            TICK_S * int(field) for field in fields[:8]
        )
        busy = user + nice + system + irq + softirq
        return cls(time.monotonic(), busy, steal, sum(os.times()[:4]))


@dataclass(frozen=True, slots=True)
class Share:
    """Percent of one core."""

    foreign: float
    steal: float
    seconds: float


def share_since(before: CpuTimes) -> Share:
    now = CpuTimes.now()
    seconds = max(1e-9, now.at - before.at)
    foreign = (now.busy - before.busy) - (now.own - before.own)
    return Share(
        round(max(0.0, 100 * foreign / seconds), 1),
        round(100 * (now.steal - before.steal) / seconds, 1),
        round(seconds, 2),
    )


def wait_until_quiet(limit_percent: float, timeout_s: float, window_s: float = 1.0) -> bool:
    """True as soon as the others took less than the limit over a window."""
    deadline = time.monotonic() + timeout_s
    while True:
        before = CpuTimes.now()
        time.sleep(window_s)
        if share_since(before).foreign <= limit_percent:
            return True
        if time.monotonic() >= deadline:
            return False
