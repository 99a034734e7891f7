"""Nothing here may hang: the guard is generous, no test depends on time, --timeout wins over it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout") is not None:
        return
    for item in items:
        if "tests/media" in item.path.as_posix() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(120))
