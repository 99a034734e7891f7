"""Pictures of many formats and sizes, and what in-process preprocessing makes of them."""

from __future__ import annotations

import io
import json
import shutil
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from PIL import Image

from pyvlm.media.decode import admit_header
from pyvlm.media.lease import PatchLease
from pyvlm.media.policy import DEFAULT_FORMATS, OPTIONAL_FORMATS, MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.preprocessor import Picture, Preprocessor
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import VisionConfig
from pyvlm.models.parse import parse_config, read_config

TINY = Path(__file__).parents[2] / "pyvlm" / "assets" / "tiny"
POLICY = MediaPolicy(allowed_formats=DEFAULT_FORMATS + OPTIONAL_FORMATS)
TILE_BYTES = 110_592  # of the tiny model: 27 pages
WAIT_S = 60  # a guard against hanging, nothing more


def tiny_vision() -> VisionConfig:
    vision = parse_config(read_config(TINY)).vision
    assert vision is not None
    return vision


def checkpoint(folder: Path, **settings: object) -> Path:
    """The tiny model's side files with other settings of its image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TINY / "config.json", folder)
    config = json.loads((TINY / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**config, **settings}))
    return folder


def encoded(width: int, height: int, form: str = "JPEG", mode: str = "RGB", seed: int = 0) -> bytes:
    """Noise over a gradient: no two pictures look alike, and a JPEG has a realistic size."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 / width, y * 255 / height, (x + y) % 256], -1)
    pixels = np.clip(base + rng.integers(-30, 30, base.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form)
    return out.getvalue()


def picture(data: bytes, index: int = 0) -> Picture:
    return Picture(data, admit_header(data, POLICY, index), index)


def submit(
    pool: Preprocessor, data: bytes, index: int = 0, **options: object
) -> Future[PatchLease]:
    return pool.submit_all([picture(data, index)], **options)[0]


def in_process(data: bytes, transform: ImageTransform) -> np.ndarray:
    return preprocess_image(data, admit_header(data, POLICY), transform).patches
