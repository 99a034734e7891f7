"""A small soak; the whole is `python -m tools.soak`."""

from __future__ import annotations

import asyncio

from tests.server.conftest import Running
from tools.soak import soak


def test_mixed_requests_end_as_they_should(server: Running) -> None:
    result = asyncio.run(soak(server.url, seed=3, num_requests=120, num_clients=8))
    assert result.problems == []
    assert sum(result.outcomes.values()) == 120
