"""Random pictures with the statistics of photographs rather than of noise: large soft shapes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

_CELLS = 12  # colours along a side


def random_jpeg(rng: np.random.Generator, width: int, height: int) -> bytes:
    """The same generator state gives the same bytes."""
    cells = rng.integers(0, 256, size=(_CELLS, _CELLS, 3), dtype=np.uint8)
    picture = Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=85)
    return out.getvalue()
