"""Tables of rotary angles under the published scaling schemes, in float32 like the reference."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pyvlm.models.config import RopeConfig

Array = NDArray[np.float32]


def rope_table(rope: RopeConfig, head_dim: int, capacity: int) -> Array:
    """[capacity, D]: D/2 cosines, then D/2 sines of each position, attention factor included."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    positions = np.arange(capacity, dtype=np.float32)
    angles = positions[:, None] * frequencies[None, :]
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return table * np.float32(factor)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """[D/2] inverse frequencies and the factor on cosines and sines."""
    return _SCHEMES[rope.type](rope, head_dim)


def _base_frequencies(theta: float, head_dim: int) -> Array:
    return (np.float32(1.0) / _periods(theta, head_dim)).astype(np.float32)


def _periods(theta: float, head_dim: int) -> Array:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (np.float32(theta) ** exponents).astype(np.float32)


def _default(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    return _base_frequencies(rope.theta, head_dim), 1.0


def _linear(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    return _base_frequencies(rope.theta, head_dim) / np.float32(rope.factor), 1.0


def _dynamic(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Up to max_position_embeddings the base is the trained one (`RopeConfig.max_capacity`)."""
    return _base_frequencies(rope.theta, head_dim), 1.0


def _llama3(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    plain = _base_frequencies(rope.theta, head_dim)
    original = float(rope.original_max_position_embeddings or rope.max_position_embeddings)
    one = np.float32(1.0)  # torch divides a number by a tensor through the tensor's reciprocal
    wavelength = one / plain * np.float32(2 * math.pi)
    scaled = plain / np.float32(rope.factor)
    spread = np.float32(rope.high_freq_factor - rope.low_freq_factor)
    turns = one / wavelength * np.float32(original)
    blend = (turns - np.float32(rope.low_freq_factor)) / spread
    blended = (1 - blend) * plain / np.float32(rope.factor) + blend * plain
    low, high = original / rope.low_freq_factor, original / rope.high_freq_factor
    result = np.where(wavelength > low, scaled, np.where(wavelength < high, plain, blended))
    return result.astype(np.float32), 1.0


def _yarn(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Interpolates slow dimensions, keeps fast ones, with a linear ramp between."""
    plain = _base_frequencies(rope.theta, head_dim)
    original = rope.original_max_position_embeddings or rope.max_position_embeddings

    def dimension(rotations: float) -> float:
        turns = original / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    width = high - low if high != low else 0.001
    index = np.arange(head_dim // 2, dtype=np.float32)
    ramp = np.clip((index - np.float32(low)) / np.float32(width), 0, 1)
    kept = 1 - ramp  # twice one minus: the reference's own order of roundings
    slow = np.float32(1.0) / (np.float32(rope.factor) * _periods(rope.theta, head_dim))
    result = slow * (1 - kept) + plain * kept
    return result.astype(np.float32), _yarn_attention_factor(rope)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def _longrope(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """The short factors: right up to the original context (`RopeConfig.max_capacity`)."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    factors = np.asarray(rope.short_factor, np.float32)
    powers = (np.float32(rope.theta) ** exponents).astype(np.float32)
    frequencies = (np.float32(1.0) / (factors * powers)).astype(np.float32)
    if rope.attention_factor is not None:
        return frequencies, rope.attention_factor
    if rope.factor <= 1.0:
        return frequencies, 1.0
    original = rope.original_max_position_embeddings or rope.max_position_embeddings
    return frequencies, math.sqrt(1 + math.log(rope.factor) / math.log(original))


_SCHEMES: dict[str, Callable[[RopeConfig, int], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
