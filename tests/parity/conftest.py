from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tools.parity.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(2)
    from tools.parity.lab import Lab

    return Lab(tmp_path_factory.mktemp("parity"))
