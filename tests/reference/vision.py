"""A plain numpy SigLIP tower with pixel shuffle and connector, one tile at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyvlm.models.config import VisionConfig

Array = NDArray[np.float32]


@dataclass
class NumpyTower:
    config: VisionConfig
    weights: dict[str, Array]

    def embed(self, patches: Array, valid: tuple[int, int]) -> Array:
        """[P, 3*p*p] -> [P, Dv]; padding patches take position 0."""
        grid = self.config.grid
        table = self.weights["vision.position_table"].astype(np.int64)
        ids = table[valid[0]][:, None] * grid + table[valid[1]][None, :]
        ids = np.where(self._is_valid(valid).reshape(grid, grid), ids, 0).reshape(-1)
        return self._linear("patch", patches) + self.weights["vision.position"][ids]

    def block(self, layer: int, x: Array, valid: tuple[int, int]) -> Array:
        p = f"blocks.{layer}"
        qkv = self._linear(f"{p}.qkv", self._norm(f"{p}.norm1", x))
        x = x + self._linear(f"{p}.o", self._attention(qkv, valid))
        hidden = _gelu_tanh(self._linear(f"{p}.fc1", self._norm(f"{p}.norm2", x)))
        return x + self._linear(f"{p}.fc2", hidden)

    def project(self, x: Array) -> Array:
        """[P, Dv] -> [R, H]."""
        grid, s = self.config.grid, self.config.pixel_shuffle
        x = self._norm("post_norm", x)
        blocks = x.reshape(grid // s, s, grid // s, s, -1).transpose(0, 2, 1, 3, 4)
        return blocks.reshape((grid // s) ** 2, -1) @ self.weights["vision.connector"].T

    def encode(self, patches: Array, valid: tuple[int, int]) -> Array:
        x = self.embed(patches, valid)
        for layer in range(self.config.num_layers):
            x = self.block(layer, x, valid)
        return self.project(x)

    def _attention(self, qkv: Array, valid: tuple[int, int]) -> Array:
        v = self.config
        q, k, values = qkv.reshape(v.num_patches, 3, v.num_heads, v.head_dim).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) * np.float32(v.head_dim**-0.5)
        scores[:, :, ~self._is_valid(valid)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return (scores @ values).transpose(1, 0, 2).reshape(v.num_patches, -1)

    def _is_valid(self, valid: tuple[int, int]) -> NDArray[np.bool_]:
        index = np.arange(self.config.grid)
        return ((index < valid[0])[:, None] & (index < valid[1])[None, :]).reshape(-1)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"vision.{name}"].T + self.weights[f"vision.{name}_bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(self.config.norm_eps))
        return scaled * self.weights[f"vision.{name}"] + self.weights[f"vision.{name}_bias"]


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
