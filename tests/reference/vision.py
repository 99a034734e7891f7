"""A plain numpy SigLIP tower with pixel shuffle and connector, one tile at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyvlm.models.config import VisionConfig
from tests.reference import ops
from tests.reference.ops import Array


@dataclass
class NumpyTower:
    config: VisionConfig
    weights: dict[str, Array]

    def embed(self, patches: Array, valid: tuple[int, int]) -> Array:
        """[P, 3*p*p] -> [P, Dv]"""
        table = self.weights["vision.position_table"].astype(np.int32)
        position = self.weights["vision.position"]
        return ops.add_position(self._linear("patch", patches), position, table, valid)

    def block(self, layer: int, x: Array, valid: tuple[int, int]) -> Array:
        p, v = f"blocks.{layer}", self.config
        qkv = self._linear(f"{p}.qkv", self._norm(f"{p}.norm1", x))
        x = x + self._linear(f"{p}.o", ops.attend_full(qkv, valid, v.grid, v.num_heads))
        hidden = ops.gelu_tanh(self._linear(f"{p}.fc1", self._norm(f"{p}.norm2", x)))
        return x + self._linear(f"{p}.fc2", hidden)

    def project(self, x: Array) -> Array:
        """[P, Dv] -> [R, H]"""
        x = ops.pixel_shuffle(
            self._norm("post_norm", x), self.config.grid, self.config.pixel_shuffle
        )
        return x @ self.weights["vision.connector"].T

    def encode(self, patches: Array, valid: tuple[int, int]) -> Array:
        x = self.embed(patches, valid)
        for layer in range(self.config.num_layers):
            x = self.block(layer, x, valid)
        return self.project(x)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"vision.{name}"].T + self.weights[f"vision.{name}_bias"]

    def _norm(self, name: str, x: Array) -> Array:
        weight, bias = self.weights[f"vision.{name}"], self.weights[f"vision.{name}_bias"]
        return ops.layer_norm(x, weight, bias, self.config.norm_eps)
