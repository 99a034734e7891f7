"""int8 weights: blocks of 32 inputs of one row that share a scale in f16.

The kernels read them in panels of 16 rows, [ceil(N/16)][ceil(K/32)] blocks of 544 bytes: 16 scales
(f16, little endian), then int8 as [16 pairs of inputs][16 rows][2]. Generated code reads rows and
scales as two parameters. Rows past N and inputs past K are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # inputs of a row under one scale
ROWS = 16  # of a panel
BLOCK_BYTES = ROWS * 2 + ROWS * BLOCK
LEVELS = 127  # on each side of zero
OVERFLOW = LEVELS * 65520.0  # the smallest magnitude whose scale rounds to infinity

Rows = NDArray[np.float32]


def num_blocks(columns: int) -> int:
    return -(-columns // BLOCK)


def quantize_rows(values: Rows) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """[N, K] finite values below OVERFLOW -> int8 [N, ceil(K/32) * 32] and scales [N, ceil(K/32)].

    No value is off by more than half its block's scale: where rounding the scale to f16 would cut
    the largest value (tiny scales have few bits), the next larger scale is taken.
    """
    rows, columns = values.shape
    width = num_blocks(columns) * BLOCK
    if width != columns:
        values = np.pad(values, ((0, 0), (0, width - columns)))
    blocks = values.reshape(rows, -1, BLOCK)
    highest = np.abs(blocks).max(axis=2)
    scales = (highest / np.float32(LEVELS)).astype(np.float16)
    is_cut = highest > np.float32(LEVELS + 0.5) * scales.astype(np.float32)
    scales[is_cut] = np.nextafter(scales[is_cut], np.float16(np.inf))
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = 1
    levels = blocks / divisors[:, :, None]
    np.rint(levels, out=levels)
    np.clip(levels, -LEVELS, LEVELS, out=levels)
    return levels.astype(np.int8).reshape(rows, width), scales


def dequantize_rows(levels: NDArray[np.int8], scales: NDArray[np.float16], columns: int) -> Rows:
    """The values that the levels stand for: exact in f32."""
    blocks = levels.reshape(*scales.shape, BLOCK).astype(np.float32)
    values: Rows = (blocks * scales.astype(np.float32)[:, :, None]).reshape(len(levels), -1)
    return values[:, :columns]


def quantized_panels(values: Rows) -> NDArray[np.int8]:
    """[N, K], N a multiple of 16 in the order of lanes -> [N/16, ceil(K/32), 544]."""
    levels, scales = quantize_rows(values)
    blocks = scales.shape[1]
    halves = np.empty((len(values) // ROWS, blocks, BLOCK_BYTES // 2), np.int16)  # two bytes each
    lanes = scales.astype("<f2").view(np.int16).reshape(-1, ROWS, blocks)
    halves[:, :, :ROWS] = lanes.transpose(0, 2, 1)
    pairs = levels.view(np.int16).reshape(-1, ROWS, blocks, BLOCK // 2)
    by_pair = halves[:, :, ROWS:].reshape(-1, blocks, BLOCK // 2, ROWS)  # splits an axis: a view
    by_pair[:] = pairs.transpose(0, 2, 3, 1)
    return halves.view(np.int8)
