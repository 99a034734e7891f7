"""Preprocessing in worker processes: patches in shared memory against patches sent by pickling.

Both do the same work on the same picture, a 12-megapixel JPEG that becomes 13 tiles of 512 (41 MB
of patches), in the same number of processes. What is beside the work itself, `overhead_ms`, is
what the way of the bytes costs.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pytest_benchmark.fixture import BenchmarkFixture

from pyvlm.files import read_if_any
from pyvlm.media.decode import admit_images, decode_image
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.pool import PreprocessPool
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.preprocessor import MIB, Picture, PoolOptions
from pyvlm.media.settings import load_transform
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import VisionConfig

Patches = npt.NDArray[np.float32]
# (number of pictures, what each must give or nothing) -> milliseconds of decoding and transforming.
Run = Callable[..., float]

VISION = VisionConfig(
    hidden_size=768,
    intermediate_size=3072,
    num_layers=12,
    num_heads=12,
    image_size=512,
    patch_size=16,
    pixel_shuffle=4,
)
SETTINGS = {
    "image_processor_type": "Idefics3ImageProcessor",
    "max_image_size": {"longest_edge": 512},
    "size": {"longest_edge": 2048},
    "resample": 1,
}
NUM_TILES = 13
PICTURES = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of SmolVLM's preprocessing; no weights are involved."""
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    return folder


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    """4000 x 3000, about 2 MB: smooth shapes with a little noise, as a camera makes them."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((4000, 3000), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "JPEG", quality=85)
    return out.getvalue()


@pytest.fixture(scope="module")
def expected(checkpoint: Path, jpeg: bytes) -> Patches:
    (header,) = admit_images([jpeg], MediaPolicy())
    patches = preprocess_image(jpeg, header, _transform(checkpoint)).patches
    assert len(patches) == NUM_TILES
    return patches


@pytest.fixture
def through_slab(checkpoint: Path, jpeg: bytes) -> Iterator[Callable[..., Run]]:
    pools = []

    def make(num_workers: int) -> Run:
        options = PoolOptions(num_workers, slab_bytes=384 * MIB, job_timeout_s=600.0)
        pool = PreprocessPool(checkpoint, VISION, options)
        pools.append(pool)
        pool.start()
        return partial(_all_through_slab, pool, jpeg)

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def by_pickling(checkpoint: Path, jpeg: bytes) -> Iterator[Callable[..., Run]]:
    executors = []

    def make(num_workers: int) -> Run:
        executor = ProcessPoolExecutor(
            num_workers, multiprocessing.get_context("spawn"), _build, (checkpoint,)
        )
        executors.append(executor)
        return partial(_all_by_pickling, executor, jpeg)

    yield make
    for executor in executors:
        executor.shutdown()


@pytest.mark.benchmark(group="one 12-megapixel JPEG to 13 tiles, one worker", warmup=False)
@pytest.mark.parametrize("way", ["through_slab", "by_pickling"])
def test_one_picture(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, way: str, expected: Patches
) -> None:
    run = request.getfixturevalue(way)(1)
    run(1, expected)
    overheads = []

    def once() -> None:
        start = time.perf_counter()
        work_ms = run(1)
        overheads.append((time.perf_counter() - start) * 1e3 - work_ms)

    benchmark.pedantic(once, rounds=6, warmup_rounds=0)
    benchmark.extra_info["overhead_ms_median"] = round(float(np.median(overheads)), 1)


@pytest.mark.benchmark(group=f"{PICTURES} such pictures at once", warmup=False)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("way", ["through_slab", "by_pickling"])
def test_several_pictures(
    benchmark: BenchmarkFixture,
    request: pytest.FixtureRequest,
    way: str,
    num_workers: int,
    expected: Patches,
) -> None:
    run = request.getfixturevalue(way)(num_workers)
    run(PICTURES, expected)
    benchmark.pedantic(run, args=(PICTURES,), rounds=3)
    benchmark.extra_info["images_per_s"] = round(PICTURES / benchmark.stats.stats.median, 2)


def _all_through_slab(
    pool: PreprocessPool, jpeg: bytes, count: int, expected: Patches | None = None
) -> float:
    """Milliseconds of work; every patch is there to be read when it returns."""
    (header,) = admit_images([jpeg], MediaPolicy())
    work = 0.0
    for (job,) in [pool.submit_all([Picture(jpeg, header, index)]) for index in range(count)]:
        with job.result(600) as lease:
            work += lease.times.decode_ms + lease.times.transform_ms
            if expected is not None:
                np.testing.assert_array_equal(lease.patches.patches, expected)
    return work


def _all_by_pickling(
    executor: ProcessPoolExecutor, jpeg: bytes, count: int, expected: Patches | None = None
) -> float:
    work = 0.0
    for job in [executor.submit(_work, jpeg) for _ in range(count)]:
        patches, spent = job.result(600)
        work += spent
        if expected is not None:
            np.testing.assert_array_equal(patches, expected)
    return work


def _transform(checkpoint: Path) -> ImageTransform:
    return load_transform(partial(read_if_any, checkpoint), VISION)


_built: list[ImageTransform] = []  # of an executor's process


def _build(checkpoint: Path) -> None:
    os.nice(5)  # as the pool's workers
    _built.append(_transform(checkpoint))


def _work(jpeg: bytes) -> tuple[Patches, float]:
    (header,) = admit_images([jpeg], MediaPolicy())
    start = time.perf_counter()
    patches = _built[0].apply(decode_image(jpeg, header)).patches
    return patches, (time.perf_counter() - start) * 1e3
