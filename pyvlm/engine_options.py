"""How an engine is set up, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyvlm.errors import PyvlmError, shown

if TYPE_CHECKING:
    from pyvlm import _core
    from pyvlm.media.preprocessor import PoolStats

MIB = 1 << 20
MAX_THREADS = 256
_FAR = 1e6  # of times, in whatever unit


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What can be chosen when a bundle is loaded. `BuildOptions` are about the bundle itself."""

    num_threads: int = 0  # of the device; 0 = one per physical core
    step_budget_ms: float = 100.0  # longest prompt work between two decode steps
    max_queued: int = 256  # unfinished requests beyond the number of slots
    max_queued_bytes: int = 1024 * MIB  # encoded pictures of requests that are being prepared
    num_preprocess_workers: int = 0  # processes; 0 = one thread of this process
    slab_bytes: int | None = None  # of patches before encoding; None = see picture_stage.py
    preprocess_timeout_s: float = 10.0  # of one picture in a worker
    preprocess_worker_bytes: int = 2048 * MIB  # private memory of each worker
    # Encoded pictures that the device keeps for later requests. 0: none; those of a request with
    # several choices are kept for its choices alone.
    image_cache_bytes: int = 0
    check_invariants: bool = False  # of the native engine after every step, for tests

    def __post_init__(self) -> None:
        _check("num_threads", self.num_threads, 0, MAX_THREADS)
        _check("max_queued", self.max_queued, 0, 1 << 20)
        _check("max_queued_bytes", self.max_queued_bytes, 1)
        _check("num_preprocess_workers", self.num_preprocess_workers, 0, MAX_THREADS)
        if self.slab_bytes is not None:
            _check("slab_bytes", self.slab_bytes, 1)
        _check("preprocess_worker_bytes", self.preprocess_worker_bytes, 1)
        _check("image_cache_bytes", self.image_cache_bytes, 0)
        _check_positive("step_budget_ms", self.step_budget_ms)
        _check_positive("preprocess_timeout_s", self.preprocess_timeout_s)


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """num_open requests are unfinished: num_preparing of them have not reached the native engine,
    num_in_order are the image requests among those, all choices of one as one from when the first
    of them is planned. queued_bytes: the encoded pictures that they hold."""

    native: _core.EngineStats
    pool: PoolStats | None  # None: the model takes no pictures
    num_open: int
    num_preparing: int
    num_in_order: int
    queued_bytes: int
    is_draining: bool


def _check(name: str, value: object, low: int, high: int = 1 << 50) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    raise _invalid(name, f"an integer from {low} to {high}", value)


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _FAR:
        return
    raise _invalid(name, f"a number above 0 and below {_FAR:g}", value)


def _invalid(name: str, expected: str, value: object) -> PyvlmError:
    return PyvlmError(
        f"{name} must be {expected}, not {shown(value)}", code="invalid_parameter", param=name
    )
