"""Pictures through a preprocessor: the very patches that this process would make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pool.conftest import MakePool
from tests.pool.pictures import encoded, in_process, picture

WAIT_S = 60


@pytest.fixture(params=[1, 0], ids=["pool", "inline"])
def num_workers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_patches_are_those_of_this_process(make_pool: MakePool, num_workers: int, form: str):
    pool = make_pool(num_workers=num_workers)
    for size in [(1, 1), (17, 300), (640, 481)]:
        data = encoded(*size, form)
        lease = pool.submit(*picture(data)).result(WAIT_S)
        with lease:
            np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))
            assert lease.patches.patches.dtype == np.float32
            assert lease.times.decode_ms > 0
            assert lease.times.transform_ms > 0
