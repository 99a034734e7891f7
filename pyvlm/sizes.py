"""Byte counts as people read them."""

from __future__ import annotations

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(num_bytes: int) -> str:
    """Exact: `90 MiB`, and `1000000 bytes` where no unit divides it."""
    for size, name in _UNITS:
        if num_bytes >= size and num_bytes % size == 0:
            return f"{num_bytes // size} {name}"
    return f"{num_bytes} bytes"
