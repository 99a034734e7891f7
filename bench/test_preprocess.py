"""Decode and transform of one picture on one core, against transformers' PIL processor.

Both get the same bytes and give the same numbers, which is asserted before anything is timed. The
reference opens the picture and converts it to RGB as its loader does. At the end the ratio of the
medians is printed.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import PIL
import pytest
from PIL import Image, features
from pytest_benchmark.fixture import BenchmarkFixture

from pyvlm.media.decode import admit_images
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.transform import transform_from_config

smolvlm = pytest.importorskip("transformers.models.smolvlm.image_processing_pil_smolvlm")

SETTINGS = {
    "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1,
}  # fmt: skip
SIZES = {"512x512": (512, 512), "1920x1080": (1920, 1080), "12 MP": (4032, 3024)}
POLICY = MediaPolicy()

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


SUBJECTS = {"transformers": theirs, "pyvlm": ours}


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


@pytest.fixture(scope="module")
def medians() -> dict[str, float]:
    return {}


@pytest.mark.benchmark(group="decode and transform of one JPEG, SmolVLM settings", min_rounds=5)
@pytest.mark.parametrize("subject", list(SUBJECTS))
def test_preprocess(
    benchmark: BenchmarkFixture,
    picture: tuple[str, bytes],
    subject: str,
    medians: dict[str, float],
) -> None:
    size, data = picture
    prepare = SUBJECTS[subject]()
    tiles = len(benchmark(prepare, data))
    medians[subject, size] = benchmark.stats.stats.median
    benchmark.extra_info |= {
        "tiles": tiles, "pillow": PIL.__version__, "libjpeg": features.version("jpg"),
        "images_per_s": round(1 / benchmark.stats.stats.median, 2),
    }  # fmt: skip
    if len(SUBJECTS) == sum(key[1] == size for key in medians):
        ratio = medians["transformers", size] / medians["pyvlm", size]
        benchmark.extra_info["times_faster"] = round(ratio, 2)
        print(f"{size}, {tiles} tiles: {1 / medians['pyvlm', size]:.1f} images/s, "
              f"{ratio:.2f} times transformers")  # fmt: skip
