"""A plain numpy decoder with a slot cache: the yardstick of both lowerings.

Float32 arithmetic over the stored weights; the cache holds its own dtype, so keys and values are
rounded exactly where the compiled program rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pyvlm.models.config import DecoderConfig
from tests.reference import ops
from tests.reference.ops import Array, Ints


@dataclass
class NumpyDecoder:
    config: DecoderConfig
    weights: dict[str, Array]

    def embed(self, tokens: Ints) -> Array:
        return self.weights["embed"][tokens]

    def embed_with_rows(self, tokens: Ints, row_index: Ints, rows: Array) -> Array:
        return ops.embed(self.weights["embed"], tokens, row_index, rows)

    def forward(
        self,
        x: Array,
        slots: Ints,
        positions: Ints,
        k_cache: NDArray[Any],
        v_cache: NDArray[Any],
    ) -> Array:
        """All layers over rows x [M, H]; writes their K and V into the caches, in place."""
        for layer in range(self.config.num_layers):
            p = f"layers.{layer}"
            qkv = self._norm(f"{p}.norm1", x) @ self.weights[f"{p}.qkv"].T
            if self.config.qkv_bias:
                qkv = qkv + self.weights[f"{p}.qkv_bias"]
            rope = self.weights["rope"]
            a = ops.attend(self.config, qkv, rope, layer, slots, positions, k_cache, v_cache)
            x = x + a @ self.weights[f"{p}.o"].T
            u = ops.swiglu(self._norm(f"{p}.norm2", x) @ self.weights[f"{p}.gate_up"].T)
            x = x + u @ self.weights[f"{p}.down"].T
        return x

    def logits(self, x: Array) -> Array:
        head = self.weights["embed" if self.config.tied_head else "head"]
        return self._norm("final_norm", x) @ head.T

    def _norm(self, name: str, x: Array) -> Array:
        return ops.rms_norm(x, self.weights[name], self.config.norm_eps)
