"""What a bundle needs in memory, against what this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyvlm.errors import PyvlmError

_BYTES = {"f16": 2, "f32": 4}
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes by purpose. Weights are mapped, but every step reads all of them."""

    kv: int
    weights: int
    slab: int = 0

    @property
    def total(self) -> int:
        return self.kv + self.weights + self.slab


def kv_bytes(
    *, layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int, dtype: str
) -> int:
    """Both buffers, keys and values."""
    return 2 * layers * slots * kv_heads * capacity * head_dim * _BYTES[dtype]


def check_memory(need: MemoryNeed, available: int | None = None) -> None:
    """Raises out_of_memory, naming what can be lowered, if `need` does not fit."""
    available = available_bytes() if available is None else available
    if need.total <= available:
        return
    parts = f"KV cache {_mib(need.kv)}, weights {_mib(need.weights)}"
    if need.slab:
        parts += f", images {_mib(need.slab)}"
    raise PyvlmError(
        f"the model needs {_mib(need.total)} of memory ({parts}), {_mib(available)} are "
        "available; lower --max-num-seqs or --max-model-len",
        code="out_of_memory",
    )


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The smaller of the machine's available memory and what any control group leaves us."""
    found = [_mem_available(proc / "meminfo"), *_cgroup_rooms(proc / "self/cgroup", cgroup)]
    return max(0, min(found))


def _mem_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return _UNLIMITED


def _cgroup_rooms(membership: Path, root: Path) -> Iterator[int]:
    """Limit minus use of our group and of each one above it; version 2, then version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield from _rooms(root, group, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(root / "memory", group, *files)


def _rooms(root: Path, group: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    folder = root / group.lstrip("/")
    while True:
        maximum, used = _number(folder / limit), _number(folder / usage)
        if maximum is not None and used is not None and maximum < _UNLIMITED:
            yield maximum - used + _statistic(folder / "memory.stat", cache)
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _statistic(path: Path, name: str) -> int:
    """Clean page cache: counted as used, given back when needed."""
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
