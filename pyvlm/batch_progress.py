"""The progress bar of a batch of requests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def batch_progress(total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """Gives a function to call when a request is done. None: a bar if there is a terminal."""
    if wanted is None:
        wanted = total > 1 and sys.stderr is not None and sys.stderr.isatty()
    if not wanted:
        yield lambda: None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, unit="request", file=sys.stderr) as bar:

        def advance() -> None:
            bar.update(1)

        yield advance
