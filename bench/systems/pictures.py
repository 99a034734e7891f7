"""Pictures as files, for tools that read files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pyvlm.bench.pictures import random_jpeg


def write_pictures(folder: Path, count: int, side: int) -> list[Path]:
    paths = [folder / f"picture-{side}-{index}.jpg" for index in range(count)]
    for index, path in enumerate(paths):
        if not path.exists():
            path.write_bytes(random_jpeg(np.random.default_rng((5, index)), side, side))
    return paths
