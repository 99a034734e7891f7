"""Every shape that the emitters, the packer and the runner must agree on.

Letters: L layers, S slots, C capacity, V vocabulary, H hidden, I intermediate, D head size,
n heads, k key/value heads; the tower's own are Dv (hidden), P patches, s pixel shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyvlm.emit import quantize
from pyvlm.models.config import DecoderConfig, ModelConfig, VisionConfig

Lowering = Literal["kernels", "codegen"]
Packing = Literal[
    "plain", "panels", "gate_up_panels", "q8_panels", "q8_gate_up_panels", "q8_rows", "q8_scales"
]

PANEL = 16  # rows of a matrix that lie side by side under the kernels lowering
NUMPY_DTYPES = {"f16": np.float16, "f32": np.float32, "i8": np.int8, "i32": np.int32}
_SCALES = ".scale"  # a matrix of int8 rows has its scales beside it


@dataclass(frozen=True, slots=True)
class Param:
    """One entry of the parameter archive.

    `logical` is the shape before packing ([N, K] of a matrix), `shape` the stored one. The q8
    packings quantise (see `pyvlm.emit.quantize`).
    """

    name: str
    logical: tuple[int, ...]
    dtype: str
    packing: Packing = "plain"

    @property
    def shape(self) -> tuple[int, ...]:
        if self.packing in ("plain", "q8_rows"):
            return self.logical
        rows, columns = self.logical
        if self.packing == "q8_scales":
            return (rows, quantize.num_blocks(columns))
        panels = _ceil_div(rows, PANEL)
        if self.is_gate_up:
            panels = _ceil_div(rows // 2, PANEL // 2)
        if self.is_quantized:
            return (panels, quantize.num_blocks(columns), quantize.BLOCK_BYTES)
        return (panels, columns, PANEL)

    @property
    def is_quantized(self) -> bool:
        return self.packing.startswith("q8_")

    @property
    def is_gate_up(self) -> bool:
        return self.packing in ("gate_up_panels", "q8_gate_up_panels")

    @property
    def matrix(self) -> str:
        """The parameter whose values are packed here: its own name but for scales."""
        return self.name.removesuffix(_SCALES) if self.packing == "q8_scales" else self.name


def kv_shape(config: DecoderConfig, num_slots: int, capacity: int) -> tuple[int, ...]:
    """Shape of the K and of the V buffer: [L, S, k, C, D]; keys are stored rotated."""
    return (config.num_layers, num_slots, config.num_kv_heads, capacity, config.head_dim)


def scales_of(name: str) -> str:
    """Name of the scales of a matrix of int8 rows."""
    return name + _SCALES


def qkv_rows(config: DecoderConfig) -> int:
    return (config.num_heads + 2 * config.num_kv_heads) * config.head_dim


def parameters(config: ModelConfig, lowering: Lowering, capacity: int) -> dict[str, Param]:
    """All parameters by name, in archive order."""
    entries = list(_decoder(config, lowering, capacity))
    if config.vision is not None:
        entries += _vision(config.vision, config, lowering)
    return {entry.name: entry for entry in entries}


def pack(param: Param, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Brings `array` (logical shape, any float or int type) into the stored form of `param`."""
    if tuple(array.shape) != param.logical:
        raise ValueError(f"{param.name}: shape {array.shape}, expected {param.logical}")
    if param.is_quantized:
        return _quantized(param, array.astype(np.float32, copy=False))
    data = array.astype(NUMPY_DTYPES[param.dtype], copy=False)
    if param.packing == "plain":
        return np.ascontiguousarray(data)
    lanes = _gate_up_lanes(data) if param.is_gate_up else _lanes(data)
    panels = lanes.reshape(-1, PANEL, data.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(panels)


def position_table(grid: int) -> NDArray[np.int32]:
    """[n+1, n]: the position bucket of patch j along an axis with k real patches.

    In float32, as the checkpoint's own code computes it, because a bucket edge that is hit exactly
    depends on the rounding. Row 0 (no real patch) is all zero.
    """
    step = 1.0 / grid
    boundaries = np.arange(step, 1.0, step, dtype=np.float64).astype(np.float32)
    table = np.zeros((grid + 1, grid), np.int32)
    index = np.arange(grid, dtype=np.float32)
    for valid in range(1, grid + 1):
        fraction = index * (np.float32(1.0) / np.float32(valid))
        fraction = np.minimum(fraction, np.float32(1.0 - 1e-6))
        table[valid] = np.searchsorted(boundaries, fraction, side="right")
    return table


def _decoder(config: ModelConfig, lowering: Lowering, capacity: int) -> Iterator[Param]:
    d = config.decoder

    def matrix(name: str, rows: int, columns: int, gate_up: bool = False) -> Iterator[Param]:
        return _matrix(config, lowering, name, (rows, columns), gate_up=gate_up)

    yield from matrix("embed", d.vocab_size, d.hidden_size)
    if not d.tied_head:
        yield from matrix("head", d.vocab_size, d.hidden_size)
    yield Param("final_norm", (d.hidden_size,), "f32")
    yield Param("rope", (capacity, d.head_dim), "f32")
    for i in range(d.num_layers):
        layer = f"layers.{i}"
        yield Param(f"{layer}.norm1", (d.hidden_size,), "f32")
        yield from matrix(f"{layer}.qkv", qkv_rows(d), d.hidden_size)
        if d.qkv_bias:
            yield Param(f"{layer}.qkv_bias", (qkv_rows(d),), "f32")
        yield from matrix(f"{layer}.o", d.hidden_size, d.num_heads * d.head_dim)
        yield Param(f"{layer}.norm2", (d.hidden_size,), "f32")
        yield from matrix(f"{layer}.gate_up", 2 * d.intermediate_size, d.hidden_size, gate_up=True)
        yield from matrix(f"{layer}.down", d.hidden_size, d.intermediate_size)


def _vision(v: VisionConfig, config: ModelConfig, lowering: Lowering) -> Iterator[Param]:
    def linear(name: str, rows: int, columns: int) -> Iterator[Param]:
        yield from _matrix(config, lowering, name, (rows, columns))
        yield Param(f"{name}_bias", (rows,), "f32")

    def norm(name: str) -> Iterator[Param]:
        yield Param(name, (v.hidden_size,), "f32")
        yield Param(f"{name}_bias", (v.hidden_size,), "f32")

    yield from linear("vision.patch", v.hidden_size, v.patch_dim)
    yield Param("vision.position", (v.num_patches, v.hidden_size), "f32")
    yield Param("vision.position_table", (v.grid + 1, v.grid), "i32")
    for i in range(v.num_layers):
        block = f"vision.blocks.{i}"
        yield from norm(f"{block}.norm1")
        yield from linear(f"{block}.qkv", 3 * v.hidden_size, v.hidden_size)
        yield from linear(f"{block}.o", v.hidden_size, v.hidden_size)
        yield from norm(f"{block}.norm2")
        yield from linear(f"{block}.fc1", v.intermediate_size, v.hidden_size)
        yield from linear(f"{block}.fc2", v.hidden_size, v.intermediate_size)
    yield from norm("vision.post_norm")
    columns = v.hidden_size * v.pixel_shuffle**2
    yield from _matrix(config, lowering, "vision.connector", (config.decoder.hidden_size, columns))


def _matrix(
    config: ModelConfig,
    lowering: Lowering,
    name: str,
    shape: tuple[int, int],
    *,
    gate_up: bool = False,
) -> Iterator[Param]:
    if config.quantize == "none":
        packing: Packing = "gate_up_panels" if gate_up else "panels"
        yield Param(name, shape, config.dtype, packing if lowering == "kernels" else "plain")
    elif lowering == "kernels":
        yield Param(name, shape, "i8", "q8_gate_up_panels" if gate_up else "q8_panels")
    else:
        yield Param(name, shape, "i8", "q8_rows")
        yield Param(scales_of(name), shape, "f16", "q8_scales")


def _quantized(param: Param, data: NDArray[np.float32]) -> NDArray[np.generic]:
    if param.packing == "q8_rows":
        levels, _ = quantize.quantize_rows(data)
        return np.ascontiguousarray(levels[:, : data.shape[1]])
    if param.packing == "q8_scales":
        return quantize.quantize_rows(data)[1]
    return quantize.quantized_panels(_gate_up_lanes(data) if param.is_gate_up else _lanes(data))


def _lanes(data: NDArray[Any]) -> NDArray[Any]:
    """Rows in the order of the panels' lanes, zeros to a whole panel."""
    rows, columns = data.shape
    if rows % PANEL == 0:
        return data
    padded = np.zeros((_ceil_div(rows, PANEL) * PANEL, columns), data.dtype)
    padded[:rows] = data
    return padded


def _gate_up_lanes(data: NDArray[Any]) -> NDArray[Any]:
    """As `_lanes`: eight rows of the gate, then eight of up."""
    rows, columns = data.shape[0] // 2, data.shape[1]
    half = PANEL // 2
    padded = np.zeros((2, _ceil_div(rows, half) * half, columns), data.dtype)
    padded[0, :rows], padded[1, :rows] = data[:rows], data[rows:]
    panels = padded.reshape(2, -1, half, columns).transpose(1, 0, 2, 3)
    return panels.reshape(-1, columns)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
