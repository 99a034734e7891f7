"""Small and large requests share memory and workers, so that neither waits for all of the other.

A request is large if its pictures take more than the reserve, a quarter of the slab. (Where that
has no room for a single tile, there is no reserve and all requests are small.) Each lane is a FIFO.
Between them:

- Memory. Large requests leave the reserve to small ones; only one that needs more than the rest may
  have that, when no other large one has memory. Small requests pass a large one that waits for
  memory, at most MAX_PASSED of them; then they wait for it. Those do not count that take what it
  could not have: while the reserve's rule keeps it out, as much as it will leave to them.
- Workers. While pictures of both lanes wait for a worker, the lanes take turns.

Whoever has memory waits for nobody of the other lane, here or later (`ordering.py`), so none can
wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyvlm.models.config import VisionConfig

MAX_PASSED = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of the slab that the requests of each lane have."""

    small: int
    large: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """What large requests leave of the slab to small ones."""

    slab_bytes: int
    num_bytes: int

    @classmethod
    def of(cls, slab_bytes: int, vision: VisionConfig) -> Reserve:
        quarter, tile = slab_bytes // 4, vision.num_patches * vision.patch_dim * 4
        return cls(slab_bytes, quarter if quarter >= tile else 0)

    def is_large(self, num_bytes: int) -> bool:
        return 0 < self.num_bytes < num_bytes

    def is_kept(self, num_bytes: int, large_bytes: int) -> bool:
        """If a large request takes memory while other large ones have `large_bytes`."""
        return large_bytes == 0 or large_bytes + num_bytes <= self.slab_bytes - self.num_bytes

    def is_spare(self, num_bytes: int, taken: Taken, large_bytes: int) -> bool:
        """If a small request takes memory while a large one waits for `large_bytes`: whether that
        has it no later. Bytes say nothing about ranges, so only as long as the rule keeps it out:
        once it waits for ranges to get free, all count."""
        left = min(self.num_bytes, self.slab_bytes - large_bytes)
        return not self.is_kept(large_bytes, taken.large) and taken.small + num_bytes <= left


class Lanes(Generic[T]):
    """Two FIFOs that take turns. No lock."""

    def __init__(self) -> None:
        self._lanes: tuple[deque[T], deque[T]] = deque(), deque()
        self._next = False

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def __iter__(self) -> Iterator[T]:
        for lane in self._lanes:
            yield from lane

    def add(self, item: T, *, large: bool) -> None:
        self._lanes[large].append(item)

    def pop(self) -> T:
        """The oldest of the lane whose turn it is; of the other one if that is empty."""
        lane = self._next if self._lanes[self._next] else not self._next
        self._next = not lane
        return self._lanes[lane].popleft()

    def remove(self, item: T) -> None:
        next(lane for lane in self._lanes if item in lane).remove(item)

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
