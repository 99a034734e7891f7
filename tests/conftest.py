"""Fixtures of all suites."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# `make test` does without the browser's tools.
collect_ignore = [] if find_spec("playwright") else ["browser"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children can be interrupted even if the tests run in the background.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
