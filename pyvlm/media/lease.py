"""The right to a picture's patches while their memory is lent out.

A cell of the slab is free again when no view of it is left: the holder's lease has been released
(or dropped), and the engine has dropped the buffer it borrowed. Nothing pulls memory from under a
view, and a lease that is forgotten costs its cell only as long as the object lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from pyvlm.media.transform import ImagePatches, ImageTransform, TileGrid


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Milliseconds: waiting for memory and a worker, decoding, transforming."""

    wait_ms: float
    decode_ms: float
    transform_ms: float


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One line of the table of live leases.

    state: `queued` for a worker, `running`, `held` by the owner, `borrowed`: the owner has
    released it and another, the engine as a rule, still has a view.
    """

    lease_id: int
    owner: str
    state: str
    offset: int
    num_bytes: int
    age_s: float


@dataclass(slots=True)
class LeaseTag:
    """What the table shows of a lease; shared by the lease and the table."""

    owner: str
    state: str


class PatchLease:
    """The patches of one picture; a context manager."""

    def __init__(self, patches: ImagePatches, times: JobTimes, tag: LeaseTag) -> None:
        self._patches: ImagePatches | None = patches
        self._tag = tag
        self.times = times

    @property
    def owner(self) -> str:
        """Who holds it, for the table of leases."""
        return self._tag.owner

    @owner.setter
    def owner(self, owner: str) -> None:
        self._tag.owner = owner

    @property
    def patches(self) -> ImagePatches:
        """Views of the leased memory; whoever keeps one keeps the memory."""
        if self._patches is None:
            raise ValueError("the lease was released")
        return self._patches

    def release(self) -> None:
        """The holder's end of the lease. Idempotent; any thread."""
        self._tag.state = "borrowed"  # before the views go, which may end the lease
        self._patches = None

    def __enter__(self) -> PatchLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def patches_shape(transform: ImageTransform, grid: TileGrid) -> tuple[int, int, int]:
    """[T, P, 3*p*p]"""
    return grid.num_tiles, transform.num_patches, 3 * transform.patch_size**2


def patches_over(
    base: npt.NDArray[np.float32],
    transform: ImageTransform,
    grid: TileGrid,
    on_dropped: Callable[[], None],
) -> ImagePatches:
    """A picture's patches in `base`; `on_dropped` runs when the last view of it is gone.

    It may run in any thread and amid any Python code, a garbage collection included: it must not
    take a lock that is held while Python objects are made.
    """
    weakref.finalize(base, on_dropped).atexit = False
    side = transform.tile_size // transform.patch_size
    valid = np.full((grid.num_tiles, 2), side, np.int32)
    return ImagePatches(base.reshape(patches_shape(transform, grid)), valid, grid)
