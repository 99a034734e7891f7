"""Decode and transform of one picture on one core, against transformers' PIL processor.

Both get the same bytes and give the same numbers, which is asserted before anything is timed. The
reference opens the picture and converts it to RGB as its loader does. They run in turns; the ratio
of the medians is printed. With pillow-simd: run it in an environment where that is installed.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable

import numpy as np
import PIL
import pytest
from PIL import Image, features
from pytest_benchmark.fixture import BenchmarkFixture

from pyvlm.media.decode import admit_images
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.raster import library_order
from pyvlm.media.transform import transform_from_config

smolvlm = pytest.importorskip("transformers.models.smolvlm.image_processing_pil_smolvlm")

SETTINGS = {
    "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1,
}  # fmt: skip
SIZES = {"512x512": (512, 512), "1920x1080": (1920, 1080), "12 MP": (4032, 3024)}
POLICY = MediaPolicy()
ROUNDS = 9

Prepare = Callable[[bytes], np.ndarray]


def photograph(width: int, height: int) -> bytes:
    """A JPEG about as large as a phone's: smooth shapes and some noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 32, width // 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (smooth + rng.integers(-8, 9, smooth.shape, dtype=np.int16)).clip(0, 255)
    out = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(out, "JPEG", quality=85)
    return out.getvalue()


def ours() -> Prepare:
    transform = transform_from_config(SETTINGS, image_size=512, patch_size=16)

    def prepare(data: bytes) -> np.ndarray:
        (header,) = admit_images([data], POLICY)
        return preprocess_image(data, header, transform).patches

    return prepare


def theirs() -> Prepare:
    processor = smolvlm.SmolVLMImageProcessorPil(**SETTINGS)

    def prepare(data: bytes) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return processor(images=[[image]], return_tensors="np")["pixel_values"][0]

    return prepare


def as_patches(tiles: np.ndarray, patch: int = 16) -> np.ndarray:
    count, channels, side, _ = tiles.shape
    n = side // patch
    split = tiles.reshape(count, channels, n, patch, n, patch).transpose(0, 2, 4, 1, 3, 5)
    return split.reshape(count, n * n, channels * patch * patch)


@pytest.fixture(scope="module", params=SIZES, ids=str)
def picture(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    data = photograph(*SIZES[request.param])
    assert np.array_equal(ours()(data), as_patches(theirs()(data)))
    return request.param, data


@pytest.mark.benchmark(group="decode and transform of one JPEG, SmolVLM settings")
def test_preprocess(benchmark: BenchmarkFixture, picture: tuple[str, bytes]) -> None:
    """In turns, so that whatever else the machine does meets both."""
    size, data = picture
    reference, prepare = theirs(), ours()
    theirs_s: list[float] = []

    def before_each() -> None:
        start = time.perf_counter()
        reference(data)
        theirs_s.append(time.perf_counter() - start)

    tiles = len(benchmark.pedantic(prepare, (data,), setup=before_each, rounds=ROUNDS))
    ours_s = benchmark.stats.stats.median
    reference_s = statistics.median(theirs_s)
    order = library_order(SETTINGS["resample"])
    benchmark.extra_info |= {
        "tiles": tiles, "pillow": PIL.__version__, "libjpeg": features.version("jpg"),
        "resize": order.value if order else "the library's", "transformers_s": reference_s,
        "images_per_s": round(1 / ours_s, 2), "times_faster": round(reference_s / ours_s, 2),
    }  # fmt: skip
    print(f"{size}, {tiles} tiles, Pillow {PIL.__version__}: {ours_s * 1e3:.0f} ms, transformers "
          f"{reference_s * 1e3:.0f} ms, {reference_s / ours_s:.1f} times")  # fmt: skip
