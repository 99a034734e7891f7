"""Pools that are closed after each test, whatever becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyvlm.media.pool import make_preprocessor
from pyvlm.media.preprocessor import MIB, PoolOptions, Preprocessor
from tests.pool.pictures import TINY, tiny_vision

MakePool = Callable[..., Preprocessor]
Eventually = Callable[[Callable[[], bool]], None]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    """Started preprocessors; PoolOptions by keyword."""
    made: list[Preprocessor] = []

    def make(checkpoint: Path = TINY, **options: object) -> Preprocessor:
        chosen = {"num_workers": 1, "slab_bytes": 8 * MIB, **options}
        made.append(make_preprocessor(checkpoint, tiny_vision(), PoolOptions(**chosen)))
        made[-1].start()
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """Waits for a condition; the limit is only there so that a failure ends."""

    def wait(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, "it never came to that"
            time.sleep(0.005)

    return wait
