"""Pictures through a preprocessor: the very patches and errors of this process."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from pyvlm.errors import PyvlmError
from pyvlm.media.decode import decode_image
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import (
    TILE_BYTES,
    WAIT_S,
    checkpoint,
    encoded,
    in_process,
    picture,
    submit,
)

TILED = {"do_image_splitting": True, "size": {"longest_edge": 384}}


@pytest.fixture(params=[1, 0], ids=["pool", "inline"])
def num_workers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_patches_are_those_of_this_process(make_pool: MakePool, num_workers: int, form: str):
    pool = make_pool(num_workers=num_workers)
    for size in [(1, 1), (17, 300), (640, 481)]:
        data = encoded(*size, form)
        with submit(pool, data).result(WAIT_S) as lease:
            np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))
            assert lease.patches.patches.dtype == np.float32
            assert lease.patches.patches.ctypes.data % 16 == 0
            assert lease.times.decode_ms > 0
            assert lease.times.transform_ms > 0


def test_tiles(make_pool: MakePool, num_workers: int, tmp_path: Path) -> None:
    """Up to 17 tiles a picture, several pictures at once, each with its own."""
    pool = make_pool(checkpoint(tmp_path, **TILED), num_workers=num_workers)
    sizes = [(500, 500), (900, 120), (90, 90), (120, 900)]
    data = [encoded(*size, seed=seed) for seed, size in enumerate(sizes)]
    jobs = pool.submit_all([picture(d, i) for i, d in enumerate(data)], owner="request 7")
    leases = [job.result(WAIT_S) for job in jobs]
    assert [lease.patches.grid.num_tiles for lease in leases] == [17, 5, 17, 5]
    for lease, one in zip(leases, data, strict=True):
        expected = in_process(one, pool.transform)
        np.testing.assert_array_equal(lease.patches.patches, expected)
        assert lease.patches.valid.tolist() == [[8, 8]] * len(expected)
    assert [info.owner for info in pool.leases()] == ["request 7"] * 4
    assert sum(info.num_bytes for info in pool.leases()) == 44 * TILE_BYTES


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "LA"])
def test_modes(make_pool: MakePool, mode: str) -> None:
    pool = make_pool()
    data = encoded(50, 40, "PNG", mode)
    with submit(pool, data).result(WAIT_S) as lease:
        np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))


def test_a_broken_picture_has_the_error_of_this_process(make_pool: MakePool, num_workers: int):
    pool = make_pool(num_workers=num_workers)
    whole = encoded(300, 200)
    broken = picture(whole[: len(whole) // 2], 3)
    with pytest.raises(PyvlmError) as expected:
        decode_image(broken.data, broken.header, 3)
    with pytest.raises(PyvlmError) as found:
        submit(pool, broken.data, 3).result(WAIT_S)
    assert found.value.body() == expected.value.body()
    assert found.value.code == "image_decode_failed"
    with submit(pool, whole).result(WAIT_S) as lease:
        np.testing.assert_array_equal(lease.patches.patches, in_process(whole, pool.transform))
    stats = pool.stats()
    assert (stats.num_done, stats.num_failed) == (1, {"image_decode_failed": 1})
    assert stats.num_restarts == 0


def test_bytes_longer_than_their_patches(make_pool: MakePool, eventually: Eventually) -> None:
    """They lie where the patches will: the cell is cut to size when the patches are there."""
    pool = make_pool()
    data = encoded(700, 500, "BMP")
    assert len(data) > 9 * TILE_BYTES
    with submit(pool, data).result(WAIT_S) as lease:
        np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))
        assert pool.stats().leased_bytes == TILE_BYTES
    eventually(lambda: pool.stats().leased_bytes == 0)


def test_memory_is_free_when_no_view_is_left(
    make_pool: MakePool, num_workers: int, eventually: Eventually
) -> None:
    pool = make_pool(num_workers=num_workers)
    lease = submit(pool, encoded(20, 20), owner="first").result(WAIT_S)
    assert [(info.owner, info.state) for info in pool.leases()] == [("first", "held")]
    lease.owner = "second"
    view = memoryview(lease.patches.patches[0, 2:5])
    kept = bytes(view)
    lease.release()
    lease.release()
    assert [(info.owner, info.state) for info in pool.leases()] == [("second", "borrowed")]
    with pytest.raises(ValueError, match="released"):
        lease.patches  # noqa: B018
    with submit(pool, encoded(30, 30, seed=1)).result(WAIT_S):
        assert bytes(view) == kept
    view.release()
    eventually(lambda: pool.leases() == [])


def test_a_forgotten_lease_gives_its_memory_back(
    make_pool: MakePool, num_workers: int, eventually: Eventually
) -> None:
    pool = make_pool(num_workers=num_workers)
    lease = submit(pool, encoded(20, 20)).result(WAIT_S)
    assert len(pool.leases()) == 1
    del lease
    gc.collect()
    eventually(lambda: pool.leases() == [])


def test_nobody_writes_to_leased_patches(make_pool: MakePool) -> None:
    with submit(make_pool(), encoded(20, 20)).result(WAIT_S) as lease:
        assert not lease.patches.patches.flags.writeable


def test_views_outlive_the_pool(make_pool: MakePool, num_workers: int) -> None:
    pool = make_pool(num_workers=num_workers)
    data = encoded(200, 200)
    lease = submit(pool, data).result(WAIT_S)
    pool.close()
    pool.close()
    np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))
    lease.release()
    with pytest.raises(PyvlmError) as refused:
        submit(pool, data)
    assert refused.value.code == "draining"
