"""What turns admitted pictures into patches, whichever process does the work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from pyvlm.errors import PyvlmError
from pyvlm.media.header import ImageHeader
from pyvlm.media.lease import LeaseInfo, PatchLease
from pyvlm.media.transform import ImageTransform

MIB = 1 << 20


def default_num_workers() -> int:
    """A quarter of the cores that this process may use, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // 4)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Bounds of the preprocessing stage."""

    num_workers: int = field(default_factory=default_num_workers)  # 0: a thread of this process
    slab_bytes: int = 256 * MIB  # patches that are being made, waiting or being encoded
    max_jobs: int = 64  # pictures that are not finished, queued and running
    max_queued_bytes: int = 256 * MIB  # encoded bytes of queued pictures
    job_timeout_s: float = 10.0  # from the moment a worker has the job
    worker_memory_bytes: int = 2048 * MIB  # private memory of each worker

    def __post_init__(self) -> None:
        for name in ("slab_bytes", "max_jobs", "max_queued_bytes", "worker_memory_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _invalid(name, f"must be a positive integer, not {value!r}")
        if isinstance(self.num_workers, bool) or self.num_workers < 0:
            raise _invalid("num_workers", f"must not be negative, not {self.num_workers!r}")
        if not 0 < self.job_timeout_s < 1e6:  # also refuses nan
            raise _invalid("job_timeout_s", f"must be positive, not {self.job_timeout_s!r}")


@dataclass(frozen=True, slots=True)
class Picture:
    """An admitted picture: its bytes as they came, the header found in them, its place in the
    request."""

    data: bytes
    header: ImageHeader
    index: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A snapshot: gauges, then counters since the start."""

    num_queued: int
    num_running: int
    queued_bytes: int  # encoded bytes of queued pictures
    slab_bytes: int
    leased_bytes: int
    num_workers: int  # ready for work or working
    num_done: int
    num_cancelled: int
    num_restarts: int
    num_failed: Mapping[str, int]  # by error code
    num_refused: int  # queue_full


class Preprocessor(Protocol):
    """All of it may be called from any thread.

    Futures fail with PyvlmError. They are never RUNNING, so cancel() works until they are done: a
    queued job is removed at once, a running one is abandoned and its memory free at its deadline at
    the latest. Callbacks run on a thread of the preprocessor: they must be short.
    """

    @property
    def transform(self) -> ImageTransform: ...

    @property
    def is_alive(self) -> bool:
        """Whether pictures are taken: started, and neither closed nor stopped by a fault of its
        own, after which submissions raise engine_dead."""

    def start(self) -> None:
        """Returns when pictures can be taken, or raises the reason why they never will."""

    def submit_all(
        self, pictures: Sequence[Picture], *, deadline_s: float | None = None, owner: str = ""
    ) -> list[Future[PatchLease]]:
        """The pictures of one request: all are taken, or none and it raises, queue_full if the
        bounds of jobs or bytes are reached. deadline_s counts from now, waiting included.

        They get their memory together and, within their lane (`is_large`), in the order of the
        calls. So two requests never wait for each other's memory, as long as those of a lane are
        consumed in the order of the calls too. A request that the slab could never hold is
        refused, naming the flag.
        """

    def is_large(self, pictures: Sequence[Picture]) -> bool:
        """The lane in which these pictures would wait, see `pool_lanes.py`."""

    def leases(self) -> list[LeaseInfo]: ...
    def stats(self) -> PoolStats: ...

    def close(self) -> None:
        """Fails what is not finished with `draining`; leases that are out stay valid."""


def _invalid(name: str, reason: str) -> PyvlmError:
    return PyvlmError(f"{name} {reason}", code="invalid_parameter", param=name)
