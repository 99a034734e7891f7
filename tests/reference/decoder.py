"""A plain numpy decoder with a slot cache: the yardstick of both lowerings.

Float32 arithmetic over the stored weights; the cache holds its own dtype, so keys and values are
rounded exactly where the compiled program rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyvlm.models.config import DecoderConfig

Array = NDArray[np.float32]


@dataclass
class NumpyDecoder:
    config: DecoderConfig
    weights: dict[str, Array]

    def embed(self, tokens: NDArray[np.int32]) -> Array:
        return self.weights["embed"][tokens]

    def embed_with_rows(
        self, tokens: NDArray[np.int32], row_index: NDArray[np.int32], rows: Array
    ) -> Array:
        hidden = self.embed(tokens).copy()
        taken = row_index >= 0
        hidden[taken] = rows[row_index[taken]]
        return hidden

    def forward(
        self,
        x: Array,
        slots: NDArray[np.int32],
        positions: NDArray[np.int32],
        k_cache: NDArray[np.generic],
        v_cache: NDArray[np.generic],
    ) -> Array:
        """All layers over rows x [M, H]; writes their K and V, in place, before attending."""
        for layer in range(self.config.num_layers):
            x = x + self._attention(layer, x, slots, positions, k_cache, v_cache)
            x = x + self._mlp(layer, x)
        return x

    def logits(self, x: Array) -> Array:
        head = self.weights["embed" if self.config.tied_head else "head"]
        return self._norm("final_norm", x) @ head.T

    def _attention(
        self,
        layer: int,
        x: Array,
        slots: NDArray[np.int32],
        positions: NDArray[np.int32],
        k_cache: NDArray[np.generic],
        v_cache: NDArray[np.generic],
    ) -> Array:
        d, p = self.config, f"layers.{layer}"
        qkv = self._norm(f"{p}.norm1", x) @ self.weights[f"{p}.qkv"].T
        if d.qkv_bias:
            qkv = qkv + self.weights[f"{p}.qkv_bias"]
        heads = qkv.reshape(len(x), -1, d.head_dim)
        q = self._rotate(heads[:, : d.num_heads], positions)
        k = self._rotate(heads[:, d.num_heads : d.num_heads + d.num_kv_heads], positions)
        k_cache[layer, slots, :, positions] = k
        v_cache[layer, slots, :, positions] = heads[:, d.num_heads + d.num_kv_heads :]
        out = np.empty_like(q)
        for i, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            for head in range(d.num_heads):
                kv_head = head * d.num_kv_heads // d.num_heads
                keys = k_cache[layer, slot, kv_head, : position + 1].astype(np.float32)
                values = v_cache[layer, slot, kv_head, : position + 1].astype(np.float32)
                out[i, head] = _softmax(keys @ q[i, head] * np.float32(d.scale)) @ values
        return out.reshape(len(x), -1) @ self.weights[f"{p}.o"].T

    def _mlp(self, layer: int, x: Array) -> Array:
        p = f"layers.{layer}"
        gate, up = np.split(self._norm(f"{p}.norm2", x) @ self.weights[f"{p}.gate_up"].T, 2, axis=1)
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{p}.down"].T

    def _norm(self, name: str, x: Array) -> Array:
        variance = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(variance + np.float32(self.config.norm_eps)) * self.weights[name]

    def _rotate(self, heads: Array, positions: NDArray[np.int32]) -> Array:
        half = self.config.head_dim // 2
        table = self.weights["rope"][positions][:, None]
        cos, sin = table[..., :half], table[..., half:]
        a, b = heads[..., :half], heads[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
