"""Ranges of the slab: first fit in whole pages, free neighbours joined. Plain bookkeeping."""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [offset, offset + size) of the slab; both are multiples of a page."""

    offset: int
    size: int


def whole_pages(num_bytes: int) -> int:
    """num_bytes rounded up to pages, at least one."""
    return max(1, -(-num_bytes // PAGE)) * PAGE


class RangeAllocator:
    """Hands out disjoint ranges of [0, size). Not thread-safe: one thread owns it.

    Invariant: `_free` is sorted, its ranges neither touch nor overlap each other or a live one,
    and free and live bytes add up to the size.
    """

    def __init__(self, num_bytes: int) -> None:
        self.size = num_bytes // PAGE * PAGE
        self._free = [Range(0, self.size)] if self.size else []
        self._live: dict[int, int] = {}  # offset -> size

    @property
    def used_bytes(self) -> int:
        return sum(self._live.values())

    @property
    def num_live(self) -> int:
        return len(self._live)

    def take(self, num_bytes: int) -> Range | None:
        """The lowest range that is large enough; None if there is none now."""
        size = whole_pages(num_bytes)
        for index, free in enumerate(self._free):
            if free.size < size:
                continue
            rest = Range(free.offset + size, free.size - size)
            self._free[index : index + 1] = [rest] if rest.size else []
            self._live[free.offset] = size
            return Range(free.offset, size)
        return None

    def take_all(self, sizes: Sequence[int]) -> list[Range] | None:
        """One range for each size, or none at all."""
        taken: list[Range] = []
        for size in sizes:
            found = self.take(size)
            if found is None:
                for other in taken:
                    self.give_back(other)
                return None
            taken.append(found)
        return taken

    def give_back(self, given: Range) -> None:
        self._forget(given)
        self._add_free(given)

    def shrink(self, given: Range, num_bytes: int) -> Range:
        """Gives back the end of a live range; what is left of it stays live."""
        kept = Range(given.offset, whole_pages(num_bytes))
        if kept.size > given.size:
            raise ValueError("a range cannot grow")
        if kept.size == given.size:
            return given
        self._forget(given)
        self._live[kept.offset] = kept.size
        self._add_free(Range(kept.offset + kept.size, given.size - kept.size))
        return kept

    def _forget(self, given: Range) -> None:
        if self._live.get(given.offset) != given.size:
            raise ValueError(f"{given} is not live")
        del self._live[given.offset]

    def _add_free(self, free: Range) -> None:
        at = bisect.bisect(self._free, free.offset, key=lambda r: r.offset)
        first, last, start, end = at, at, free.offset, free.offset + free.size
        if at > 0 and self._free[at - 1].offset + self._free[at - 1].size == start:
            first, start = at - 1, self._free[at - 1].offset
        if at < len(self._free) and self._free[at].offset == end:
            last, end = at + 1, end + self._free[at].size
        self._free[first:last] = [Range(start, end - start)]
