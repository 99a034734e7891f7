"""Arrays at chosen addresses: NumPy aligns to 16 bytes, devices want 64."""

from __future__ import annotations

import numpy as np


def aligned(shape: tuple[int, ...], dtype: str = "float32", offset: int = 0) -> np.ndarray:
    """Zeros whose address is `offset` bytes past a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + offset
    return raw[begin : begin + size].view(dtype).reshape(shape)
