"""Image rows as the decoder gets them, f16 against quantised: the cosine of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pyvlm.emit.layout import Lowering
from pyvlm.media.transform import ImagePatches
from tools.parity.bundles import Size, Variant, build, open_program
from tools.parity.frontdoor import frontend_of
from tools.parity.subject import Subject

Array = NDArray[np.float32]


def measure(
    model: Path, pictures: Sequence[Image.Image], lowering: Lowering, folder: Path
) -> NDArray[np.float64]:
    """[rows of all pictures]"""
    transform = frontend_of(model).transform
    if transform is None:
        raise ValueError(f"{model} takes no pictures")
    plain, quantized = (
        _subject(model, Variant(lowering, weights), folder / weights) for weights in ("f16", "int8")
    )
    found = []
    for picture in pictures:
        patches = transform.apply(picture)
        found.append(cosines(_rows(plain, patches), _rows(quantized, patches)))
    return np.concatenate(found)


def cosines(a: Array, b: Array) -> NDArray[np.float64]:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(wide_a, axis=1) * np.linalg.norm(wide_b, axis=1)
    products: NDArray[np.float64] = (wide_a * wide_b).sum(axis=1)
    return products / norms


def _rows(subject: Subject, image: ImagePatches) -> Array:
    return subject.tower_of_patches(image.patches, image.valid).rows


def _subject(model: Path, variant: Variant, folder: Path) -> Subject:
    size = Size(capacity=64, slots=1, chunks=(16,), batches=(1,))
    built = build(model, folder, variant, size)
    return Subject(built, open_program(built))
