"""Finds the IREE runtime library that the extension loads.

The `shortfin` distribution ships the runtime's C library, in a default and a tracing build; the
one that its own default extension links is taken. A compiled module runs only on the runtime of
the compiler's version, so the three distributions are pinned together and checked here.
"""

from __future__ import annotations

import struct
from importlib import metadata
from pathlib import Path

from pyvlm.errors import PyvlmError

__all__ = ["REQUIRED_PACKAGES", "VERSION", "find", "needed_libraries"]

VERSION = "3.9.0"
REQUIRED_PACKAGES = ("shortfin", "iree-base-compiler", "iree-base-runtime")


def find() -> str:
    """Path of the runtime library of the installed packages.

    Raises PyvlmError runtime_missing, naming the package, the version found and the command that
    installs the right one.
    """
    for package in REQUIRED_PACKAGES:
        _check_version(package)
    return str(_shortfin_library(metadata.distribution("shortfin")))


def _missing(problem: str) -> PyvlmError:
    pins = " ".join(f"{package}=={VERSION}" for package in REQUIRED_PACKAGES)
    return PyvlmError(f"{problem}; run: pip install {pins}", code="runtime_missing")


def _check_version(package: str) -> None:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise _missing(f"package {package} {VERSION} is not installed") from None
    # A local suffix (3.9.0+build) names another build of the same release.
    if version.partition("+")[0] != VERSION:
        raise _missing(f"package {package} has version {version}, pyvlm needs {VERSION}")


def _shortfin_library(distribution: metadata.Distribution) -> Path:
    files = [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    libraries = {path.name: path for path in files if path.parent.name == "shortfin.libs"}
    extensions = [
        path
        for path in files
        if path.parent.name == "_shortfin_default" and path.name.startswith("lib.")
    ]
    for extension in extensions:
        for name in needed_libraries(extension):
            if name in libraries and libraries[name].is_file():
                return libraries[name]
    raise _missing(f"package shortfin {VERSION} has no runtime library in its files")


# The little of ELF that DT_NEEDED takes (64-bit, little-endian).
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


def needed_libraries(path: Path) -> list[str]:
    """Names in the DT_NEEDED entries of an ELF file; empty if it is unreadable or no ELF file."""
    try:
        return _parse_needed(path.read_bytes())
    except (OSError, struct.error, ValueError, OverflowError, StopIteration):
        return []


def _parse_needed(image: bytes) -> list[str]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x20)
    size, count = struct.unpack_from("<HH", image, 0x36)
    segments = [
        struct.unpack_from("<IIQQQQ", image, table + size * index) for index in range(count)
    ]
    loads = [
        (address, offset, length)
        for kind, _, offset, address, _, length in segments
        if kind == _PT_LOAD
    ]
    dynamic = next((s for s in segments if s[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return []
    _, _, offset, _, _, length = dynamic
    tags = list(struct.iter_unpack("<QQ", image[offset : offset + length // 16 * 16]))
    if (_DT_NULL, 0) in tags:
        tags = tags[: tags.index((_DT_NULL, 0))]
    strings = next(value for tag, value in tags if tag == _DT_STRTAB)
    start = next(o + strings - a for a, o, n in loads if a <= strings < a + n)
    names = []
    for tag, value in tags:
        if tag == _DT_NEEDED:
            end = image.index(b"\0", start + value)
            names.append(image[start + value : end].decode())
    return names
