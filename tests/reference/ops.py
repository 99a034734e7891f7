"""Each graph operation in plain numpy, float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyvlm.models.config import DecoderConfig

Array = NDArray[np.float32]
Ints = NDArray[np.int32]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    variance = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(variance + np.float32(eps)) * weight


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(eps)) * weight + bias


def swiglu(gate_up: Array) -> Array:
    gate, up = np.split(gate_up, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


def gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def embed(table: Array, tokens: Ints, row_index: Ints, rows: Array) -> Array:
    hidden = table[tokens].copy()
    taken = row_index >= 0
    hidden[taken] = rows[row_index[taken]]
    return hidden


def rotate(heads: Array, angles: Array) -> Array:
    """heads [M, n, D] by angles [M, D]: D/2 cosines, then D/2 sines."""
    half = heads.shape[-1] // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    a, b = heads[..., :half], heads[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(
    d: DecoderConfig,
    qkv: Array,
    rope: Array,
    layer: int,
    slots: Ints,
    positions: Ints,
    k_cache: NDArray[Any],
    v_cache: NDArray[Any],
) -> Array:
    """Writes K and V of all rows into the caches, in place, then attends row by row."""
    heads = qkv.reshape(len(qkv), -1, d.head_dim)
    q = rotate(heads[:, : d.num_heads], rope[positions])
    k = rotate(heads[:, d.num_heads : d.num_heads + d.num_kv_heads], rope[positions])
    k_cache[layer, slots, :, positions] = k
    v_cache[layer, slots, :, positions] = heads[:, d.num_heads + d.num_kv_heads :]
    out = np.empty_like(q)
    for i, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        for head in range(d.num_heads):
            kv_head = head * d.num_kv_heads // d.num_heads
            keys = k_cache[layer, slot, kv_head, : position + 1].astype(np.float32)
            values = v_cache[layer, slot, kv_head, : position + 1].astype(np.float32)
            out[i, head] = softmax(keys @ q[i, head] * np.float32(d.scale)) @ values
    return out.reshape(len(qkv), -1)


def valid_patches(valid: tuple[int, int], grid: int) -> NDArray[np.bool_]:
    """[P]: the patches that are no padding."""
    index = np.arange(grid)
    return ((index < valid[0])[:, None] & (index < valid[1])[None, :]).reshape(-1)


def attend_full(qkv: Array, valid: tuple[int, int], grid: int, num_heads: int) -> Array:
    p = len(qkv)
    q, k, v = qkv.reshape(p, 3, num_heads, -1).transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) * np.float32(q.shape[-1] ** -0.5)
    scores[:, :, ~valid_patches(valid, grid)] = -np.inf
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(p, -1)


def add_position(x: Array, position: Array, table: Ints, valid: tuple[int, int]) -> Array:
    """Padding patches take position 0."""
    grid = table.shape[1]
    ids = table[valid[0]][:, None] * grid + table[valid[1]][None, :]
    return x + position[np.where(valid_patches(valid, grid), ids.reshape(-1), 0)]


def pixel_shuffle(x: Array, grid: int, factor: int) -> Array:
    side = grid // factor
    blocks = x.reshape(side, factor, side, factor, -1).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(side**2, -1)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
