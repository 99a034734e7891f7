"""Our transform against transformers' PIL processors: same patches bit for bit, same tiles."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import ImageTransform, TileGrid, transform_from_config

idefics3 = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
smolvlm = pytest.importorskip("transformers.models.smolvlm.image_processing_pil_smolvlm")

PROCESSORS = [idefics3.Idefics3ImageProcessorPil, smolvlm.SmolVLMImageProcessorPil]
SIZES = [
    (64, 64), (65, 64), (100, 37), (37, 100), (255, 256), (256, 256), (300, 200), (511, 3),
    (640, 480), (480, 641), (1, 1), (1, 50), (50, 1), (4000, 1), (1, 4000), (3, 1600), (200, 199),
]  # fmt: skip


def config(**changes: object) -> dict[str, object]:
    base = {"size": {"longest_edge": 256}, "max_image_size": {"longest_edge": 64}, "resample": 1}
    return {**base, **changes}


def ours(changes: dict[str, object]) -> ImageTransform:
    return transform_from_config(config(**changes), image_size=64, patch_size=16)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def reference(processor: type, changes: dict[str, object], image: Image.Image):
    """[T, 3, S, S], rows, cols as transformers computes them."""
    batch = processor(**config(**changes))(
        images=[[image]], return_row_col_info=True, return_tensors="np"
    )
    rows, cols = batch["rows"][0], batch["cols"][0]
    return batch["pixel_values"][0], int(np.ravel(rows)[0]), int(np.ravel(cols)[0])


def as_patches(pixels: np.ndarray, patch: int) -> np.ndarray:
    """By loops, independent of the code under test: raster patches of (channel, y, x)."""
    tiles, _, side, _ = pixels.shape
    n = side // patch
    out = np.empty((tiles, n * n, 3 * patch * patch), np.float32)
    for tile in range(tiles):
        for row in range(n):
            for col in range(n):
                y, x = row * patch, col * patch
                out[tile, row * n + col] = pixels[tile, :, y : y + patch, x : x + patch].ravel()
    return out


@pytest.mark.parametrize("processor", PROCESSORS, ids=["idefics3", "smolvlm"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_split_equals_reference_bit_for_bit(processor: type, size: tuple[int, int]) -> None:
    image = noise(*size)
    pixels, rows, cols = reference(processor, {}, image)
    got = ours({}).apply(image)
    assert (got.grid.rows, got.grid.cols) == (rows, cols)
    assert np.array_equal(got.patches, as_patches(pixels, 16))
    assert got.valid.tolist() == [[4, 4]] * len(pixels)


@pytest.mark.parametrize("size", [(64, 64), (300, 200), (1, 1), (1, 50), (33, 700)], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {"do_image_splitting": False},
        {"do_resize": False},
        {"do_resize": False, "do_image_splitting": False, "resample": 3},
        {"resample": 2, "do_normalize": False},
        {"do_rescale": False, "resample": 3},
        {"image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.27, 0.28], "resample": 5},
        {"size": {"height": 128, "width": 96}},
        {"size": {"longest_edge": 64}},
        {"size": {"longest_edge": 5000}, "do_image_splitting": False},
    ],
    ids=str,
)
def test_options_equal_reference(changes: dict[str, object], size: tuple[int, int]) -> None:
    image = noise(*size, seed=1)
    pixels, rows, cols = reference(PROCESSORS[0], changes, image)
    got = ours(changes).apply(image)
    assert (got.grid.rows, got.grid.cols) == (rows, cols)
    assert np.array_equal(got.patches, as_patches(pixels, 16))


def test_published_smolvlm_settings_give_17_tiles() -> None:
    changes = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    transform = transform_from_config(config(**changes), image_size=512, patch_size=16)
    image = noise(512, 512, seed=2)
    assert transform.grid(512, 512) == TileGrid(4, 4)
    pixels, rows, cols = reference(PROCESSORS[1], changes, image)
    got = transform.apply(image)
    assert (rows, cols) == (4, 4)
    assert np.array_equal(got.patches, as_patches(pixels, 16))


def test_grid_needs_no_pixels_and_matches_the_real_tiles() -> None:
    transform = ours({})
    rng = np.random.default_rng(3)
    for _ in range(60):
        width, height = (int(v) for v in rng.integers(1, 900, 2))
        grid = transform.grid(width, height)
        assert grid.num_tiles == len(transform.apply(noise(width, height)).patches)
        assert grid.num_tiles <= 17


def test_channels_are_red_green_blue_in_that_order() -> None:
    image = Image.new("RGB", (64, 64), (255, 128, 0))
    patches = ours({"do_image_splitting": False}).apply(image).patches.reshape(16, 3, 256)
    assert patches[:, 0].min() == patches[:, 0].max() == np.float32(1.0)
    assert patches[:, 2].min() == patches[:, 2].max() == np.float32(-1.0)
    assert abs(patches[0, 1, 0]) < 0.01


def test_out_is_filled_in_place() -> None:
    transform = ours({})
    out = np.full((transform.grid(100, 80).num_tiles, 16, 768), np.nan, np.float32)
    got = transform.apply(noise(100, 80), out)
    assert got.patches is out
    assert np.isfinite(out).all()
    with pytest.raises(ValueError, match="out must be"):
        transform.apply(noise(100, 80), out[:1])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"max_image_size": {"longest_edge": 32}}, "vision tower takes 64"),
        ({"size": {"shortest_edge": 3}}, "size needs"),
        ({"image_mean": [0.5, 0.5]}, "image_mean needs three"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std needs"),
        ({"image_mean": ["a", 0, 0]}, "three numbers"),
        ({"resample": 9}, "resample 9"),
        ({"do_convert_rgb": False}, "do_convert_rgb"),
    ],
)
def test_bad_configs_are_named(changes: dict[str, object], what: str) -> None:
    with pytest.raises(PyvlmError, match=what) as caught:
        ours(changes)
    assert caught.value.code == "model_invalid"
