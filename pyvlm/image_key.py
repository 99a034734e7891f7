"""Names for pictures: equal only if the file and everything that makes its pixels are equal."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import PIL
from PIL import features

from pyvlm.bundle import Bundle
from pyvlm.manifest import canonical
from pyvlm.media.transform import ImageTransform

_CODECS = ("jpg", "zlib", "webp", "libtiff", "libjpeg_turbo")


class ImageKeys:
    """One loaded model's. Immutable; safe to share between threads."""

    def __init__(self, bundle: Bundle, transform: ImageTransform) -> None:
        self._prefix = hashlib.sha256(canonical(_pixel_makers(bundle, transform)).encode())

    def key(self, data: bytes) -> bytes:
        """Of an encoded picture. Reads all of it, without the GIL if it is large."""
        digest = self._prefix.copy()
        digest.update(data)
        return digest.digest()


def _pixel_makers(bundle: Bundle, transform: ImageTransform) -> dict[str, object]:
    """The fingerprint covers weights, program and the checkpoint's settings."""
    return {
        "model": bundle.manifest.fingerprint,
        "processor": [asdict(record) for record in bundle.manifest.checkpoint],
        "transform": asdict(transform),
        "pillow": [PIL.__version__, _is_simd()],
        "codecs": {name: features.version(name) for name in _CODECS if features.check(name)},
    }


def _is_simd() -> bool:
    from importlib import metadata

    try:
        metadata.version("pillow-simd")
    except metadata.PackageNotFoundError:
        return False
    return True
