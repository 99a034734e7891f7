"""The seam between the model graphs and their lowerings: one method per graph operation.

`decoder.py` and `vision.py` are written against `Ops`; `kernels.py` and `codegen.py` implement it.
Rows: a hidden tensor has a static number of rows, of which the first `count` are real. A lowering
may compute more rows than that, but rows past `count` never reach the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pyvlm.emit.builder import Function, Value
from pyvlm.models.config import DecoderConfig

Activation = Literal["none", "swiglu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Cache:
    """The K and V buffers as SSA values; every write yields the next pair."""

    k: Value
    v: Value


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one slot: row i stands at position start + i (prefill)."""

    slot: Value
    start: Value
    count: Value


@dataclass(frozen=True, slots=True)
class Rows:
    """One position of each of several slots (decode)."""

    slots: Value
    positions: Value
    count: Value


Placement = Span | Rows


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Encoder rows that take the place of embedded tokens where index >= 0."""

    index: Value
    rows: Value


@dataclass(frozen=True, slots=True)
class RmsNorm:
    weight: str  # parameter name
    eps: float


class Ops(Protocol):
    """Parameters are given by name; matrices are [N, K] and compute x @ W.T in f32."""

    def embed(
        self, f: Function, tokens: Value, count: Value, images: ImageRows | None
    ) -> Value: ...

    def linear(
        self,
        f: Function,
        x: Value,
        weight: str,
        *,
        count: Value | None = None,
        norm: RmsNorm | None = None,
        bias: str | None = None,
        activation: Activation = "none",
        residual: Value | None = None,
    ) -> Value:
        """residual + activation(norm(x) @ W.T + bias); count None: all rows."""

    def linear_of_row(self, f: Function, x: Value, row: Value, weight: str, norm: RmsNorm) -> Value:
        """The linear layer of one row: [1, N]."""

    def attention(
        self,
        f: Function,
        d: DecoderConfig,
        qkv: Value,
        cache: Cache,
        layer: int,
        at: Placement,
        context: int,
    ) -> tuple[Value, Cache]:
        """Rotates q and k, writes k and v into the cache, and attends.

        Each row attends to positions 0 up to its own, all below `context`; [M, n*D].
        """

    def layer_norm(self, f: Function, x: Value, weight: str, eps: float) -> Value: ...

    def attention_full(
        self, f: Function, qkv: Value, valid: Value, grid: int, num_heads: int
    ) -> Value:
        """Bidirectional; keys of padding patches (outside valid rows x columns) are masked."""

    def add_position(self, f: Function, x: Value, valid: Value, grid: int) -> Value: ...

    def pixel_shuffle(self, f: Function, x: Value, grid: int, factor: int) -> Value: ...

    def linear_into_rows(
        self, f: Function, x: Value, weight: str, rows: Value, num_rows: Value, first: Value
    ) -> Value:
        """Writes x @ W.T into rows[first:first + M] in place; `num_rows` is their extent."""

    def widen(self, f: Function, rows: Value, num_rows: Value) -> Value:
        """f16 rows as f32; `num_rows` is their dynamic extent."""
