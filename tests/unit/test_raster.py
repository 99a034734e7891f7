"""Our resize against the installed library's: the same pixels, whichever of them makes them."""

from __future__ import annotations

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pyvlm.media import _resample, raster
from pyvlm.media.raster import OWN_FILTERS, READ_RELEASES, Order, OwnRaster, library_order

needs_avx2 = pytest.mark.skipif(not _resample.available(), reason="the processor lacks AVX2")
IS_SIMD = "post" in PIL.__version__
SIDES = st.one_of(st.integers(1, 20), st.integers(1, 150), st.integers(1, 700))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise, and in its left half only black and white, which overshoot when they are resized."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[:, : width // 2] = (pixels[:, : width // 2] > 127) * np.uint8(255)
    return Image.fromarray(pixels)


@given(
    before=st.tuples(SIDES, SIDES), after=st.tuples(SIDES, SIDES), last=st.tuples(SIDES, SIDES),
    resample=st.sampled_from(Image.Resampling), seed=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_two_resizes_equal_the_library(before, after, last, resample, seed) -> None:
    image = picture(*before, seed)
    got = raster.raster(image, resample).resized(*after).resized(*last)
    expected = image.resize(after, resample).resize(last, resample)
    assert (got.width, got.height) == last
    assert np.array_equal(got.pixels(), np.asarray(expected))


@needs_avx2
@pytest.mark.parametrize("resample", OWN_FILTERS, ids=str)
def test_pillow_is_done_by_us_and_pillow_simd_by_itself(resample: int) -> None:
    """Which shows that the test above has compared two things."""
    major, minor = PIL.__version__.split(".")[:2]
    if IS_SIMD or f"{major}.{minor}" not in READ_RELEASES:
        assert library_order(resample) is None
    else:
        rows_first = int(major) < 13
        assert library_order(resample) is (Order.ROWS_FIRST if rows_first else Order.BY_SHRINKAGE)


@needs_avx2
@pytest.mark.parametrize("version", ["12.2.0", "12.3.0", "13.99.0", "14.0.0"])
def test_a_library_that_nobody_has_read_is_asked_itself(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(PIL, "__version__", version)
    library_order.cache_clear()
    try:
        assert library_order(Image.Resampling.LANCZOS) is None
    finally:
        library_order.cache_clear()


@needs_avx2
def test_bands_of_a_large_picture_fit_together() -> None:
    """More rows than a band holds, in both orders."""
    image = picture(1501, 1300)
    order = library_order(Image.Resampling.LANCZOS)
    if order is None:
        pytest.skip("the library does it itself")
    for size in ((800, 1100), (1400, 333)):
        got = OwnRaster(image, Image.Resampling.LANCZOS, order).resized(*size)
        assert np.array_equal(
            got.pixels(), np.asarray(image.resize(size, Image.Resampling.LANCZOS))
        )


@needs_avx2
def test_weights_that_leave_the_picture_are_refused() -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    starts, counts, weights = _resample.filter_weights(40, 20, Image.Resampling.LANCZOS)
    packed = raster._row_weights(weights)
    out = np.empty((40, 20, 3), np.uint8)
    groups = -(-counts // 4)
    for moved in (starts + 12, starts - 9):
        with pytest.raises(ValueError, match="within the source"):
            _resample.resample_rows(pixels, out, moved, groups, packed)
    with pytest.raises(ValueError, match="within the source"):
        _resample.resample_rows(pixels, out, starts, groups + 9, packed)
    flat, short = pixels.reshape(40, 120), np.empty((20, 120), np.uint8)
    columns = raster._column_weights(weights)
    for moved in (starts + 3, starts - 9):
        with pytest.raises(ValueError, match="within the source"):
            _resample.resample_columns(flat, short, moved, counts, columns)
    with pytest.raises(ValueError, match="at least 16"):
        _resample.resample_columns(
            flat[:, :12].copy(), short[:, :12].copy(), starts, counts, columns
        )
