"""The cells of the slab: which job or lease has which, and when one is free again."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyvlm.media.lease import JobTimes, LeaseInfo, LeaseTag, PatchLease, patches_over
from pyvlm.media.pool_jobs import Job, cells_bytes
from pyvlm.media.pool_lanes import Reserve, Taken
from pyvlm.media.pool_wake import Wake
from pyvlm.media.slab import Slab
from pyvlm.media.slab_ranges import Range, RangeAllocator
from pyvlm.media.transform import ImageTransform


@dataclass(eq=False, slots=True)
class Cell:
    lease_id: int
    range: Range
    tag: LeaseTag
    is_large: bool  # the request that it is of
    since: float = field(default_factory=time.monotonic)


class CellTable:
    """Changed by the pool's thread alone; others may look (`infos`, `used_bytes`)."""

    def __init__(self, slab: Slab, reserve: Reserve, wake: Wake) -> None:
        self._slab = slab
        self._reserve = reserve
        self._wake = wake
        self._ranges = RangeAllocator(slab.num_bytes)
        self._cells: dict[int, Cell] = {}
        self._ids = itertools.count(1)
        self._dropped: deque[int] = deque()

    @property
    def used_bytes(self) -> int:
        return sum(cell.range.size for cell in list(self._cells.values()))

    @property
    def taken(self) -> Taken:
        by_lane = [0, 0]
        for cell in self._cells.values():
            by_lane[cell.is_large] += cell.range.size
        return Taken(*by_lane)

    def infos(self) -> list[LeaseInfo]:
        now = time.monotonic()
        return [
            LeaseInfo(
                cell.lease_id,
                cell.tag.owner,
                cell.tag.state,
                cell.range.offset,
                cell.range.size,
                now - cell.since,
            )
            for cell in list(self._cells.values())
        ]

    def take(self, jobs: Sequence[Job]) -> list[Cell] | None:
        """A cell for each job of a request, or none at all."""
        if jobs[0].is_large and not self._reserve.is_kept(cells_bytes(jobs), self.taken.large):
            return None
        ranges = self._ranges.take_all([job.cell_bytes for job in jobs])
        if ranges is None:
            return None
        cells = [
            Cell(next(self._ids), found, LeaseTag(job.owner, "queued"), job.is_large)
            for job, found in zip(jobs, ranges, strict=True)
        ]
        self._cells.update((cell.lease_id, cell) for cell in cells)
        return cells

    def fill(self, cell: Cell, data: bytes) -> None:
        self._slab.write(cell.range.offset, data)

    def lend(self, cell: Cell, job: Job, transform: ImageTransform, times: JobTimes) -> PatchLease:
        """The finished patches. From here on the cell lives as long as a view of it."""
        cell.range = self._ranges.shrink(cell.range, job.patch_bytes)
        cell.tag.state = "held"
        base = self._slab.floats(cell.range.offset, job.patch_bytes // 4)
        dropped = partial(self._drop, cell.lease_id)
        return PatchLease(patches_over(base, transform, job.grid, dropped), times, cell.tag)

    def free(self, cell: Cell) -> None:
        """No process writes to it any more, and no view of it was given out."""
        del self._cells[cell.lease_id]
        self._ranges.give_back(cell.range)

    def reclaim(self) -> None:
        """Frees the cells whose last view has gone since."""
        while self._dropped:
            self.free(self._cells[self._dropped.popleft()])

    def _drop(self, lease_id: int) -> None:
        """In whichever thread the last view died; takes no lock that the pool holds."""
        self._dropped.append(lease_id)
        self._wake.set()
