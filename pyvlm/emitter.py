"""Which version of our own code a bundle was made by."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parent
_SOURCES = ("compile.py", "emit/*.py", "weights/*.py", "models/*.py")


@functools.cache
def emitter_version() -> str:
    """Digest of the sources that decide what a bundle holds."""
    total = hashlib.sha256()
    for pattern in _SOURCES:
        for file in sorted(_PACKAGE.glob(pattern)):
            content = file.read_bytes()
            total.update(f"{file.relative_to(_PACKAGE)}\0{len(content)}\0".encode())
            total.update(content)
    return total.hexdigest()
