"""Rotary tables: what must hold without a reference at hand (parity compares with transformers)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyvlm.emit.rope import inverse_frequencies, rope_table
from pyvlm.models.config import RopeConfig

D = 16


def plain(theta: float = 10000.0) -> np.ndarray:
    return 1.0 / theta ** (np.arange(0, D, 2) / D)


def test_table_holds_cosines_then_sines() -> None:
    table = rope_table(RopeConfig(theta=500.0), D, 20)
    assert table.shape == (20, D)
    assert table.dtype == np.float32
    angles = np.arange(20)[:, None] * plain(500.0)
    np.testing.assert_allclose(table[:, : D // 2], np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(table[:, D // 2 :], np.sin(angles), atol=2e-6)


def test_linear_divides_every_frequency() -> None:
    frequencies, factor = inverse_frequencies(RopeConfig(type="linear", factor=4.0), D)
    np.testing.assert_allclose(frequencies, plain() / 4, rtol=1e-6)
    assert factor == 1.0


def test_dynamic_is_plain_within_the_trained_length() -> None:
    rope = RopeConfig(type="dynamic", factor=2.0, max_position_embeddings=512)
    np.testing.assert_allclose(inverse_frequencies(rope, D)[0], plain(), rtol=1e-6)
    assert rope.max_capacity == 512


def test_llama3_keeps_short_and_divides_long_wavelengths() -> None:
    rope = RopeConfig(
        type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=512,
    )
    frequencies, _ = inverse_frequencies(rope, D)
    wavelengths = 2 * math.pi / plain()
    short, long = wavelengths < 512 / 4, wavelengths > 512
    assert short.any()
    assert long.any()
    np.testing.assert_allclose(frequencies[short], plain()[short], rtol=1e-6)
    np.testing.assert_allclose(frequencies[long], plain()[long] / 8, rtol=1e-6)
    between = ~short & ~long
    assert (frequencies[between] < plain()[between]).all()
    assert (frequencies[between] > plain()[between] / 8).all()


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_keeps_fast_and_divides_slow_dimensions(truncate: bool) -> None:
    rope = RopeConfig(
        type="yarn", factor=4.0, original_max_position_embeddings=64, truncate=truncate
    )
    frequencies, factor = inverse_frequencies(rope, D)
    assert frequencies[0] == pytest.approx(plain()[0])
    assert frequencies[-1] == pytest.approx(plain()[-1] / 4)
    assert factor == pytest.approx(0.1 * math.log(4.0) + 1.0)
    table = rope_table(rope, D, 4)
    np.testing.assert_allclose(table[0, : D // 2], factor, rtol=1e-6)


def test_yarn_attention_factor_can_be_given() -> None:
    rope = RopeConfig(
        type="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.5
    )
    assert inverse_frequencies(rope, D)[1] == 1.5


def test_longrope_divides_each_frequency_by_its_factor() -> None:
    factors = tuple(1.0 + i for i in range(D // 2))
    rope = RopeConfig(
        type="longrope",
        factor=8.0,
        original_max_position_embeddings=64,
        short_factor=factors,
        long_factor=factors,
    )
    frequencies, factor = inverse_frequencies(rope, D)
    np.testing.assert_allclose(frequencies, plain() / np.array(factors), rtol=1e-6)
    assert factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(64)))
