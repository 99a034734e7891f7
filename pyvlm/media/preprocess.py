"""One picture from bytes to patches: what a worker does, in-process or in a pool."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyvlm.media.decode import decode_image
from pyvlm.media.header import ImageHeader
from pyvlm.media.transform import ImagePatches, ImageTransform


def preprocess_image(
    data: bytes,
    header: ImageHeader,
    transform: ImageTransform,
    index: int = 0,
    out: npt.NDArray[np.float32] | None = None,
) -> ImagePatches:
    """`header` is the admitted one. Patches go to `out` [T, P, 3*p*p] if it is given."""
    return transform.apply(decode_image(data, header, index), out)
