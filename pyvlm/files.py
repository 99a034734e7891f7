"""Reading what belongs to a model: whatever the system refuses ends as one typed error.

Every read of a checkpoint or bundle goes through here, so that an OSError that is left is about
our own writing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyvlm.errors import PyvlmError

MAX_SIDE_BYTES = 128 << 20  # configuration, tokenizer, templates


@contextmanager
def reading(path: Path, code: str = "model_invalid") -> Iterator[None]:
    """OSError -> an error that names the file and the system's reason."""
    try:
        yield
    except OSError as error:
        place, reason = error.filename or path, error.strerror or str(error)
        raise PyvlmError(f"cannot read {place}: {reason}", code=code) from error


def exists(path: Path, code: str = "model_invalid") -> bool:
    """False only if there is none; a path that cannot be looked at is an error."""
    with reading(path, code):
        return path.exists()


def is_file(path: Path) -> bool:
    with reading(path):
        return path.is_file()


def read_bytes(path: Path, max_bytes: int = MAX_SIDE_BYTES) -> bytes:
    with reading(path):
        if path.stat().st_size > max_bytes:
            raise PyvlmError(f"{path} is larger than {max_bytes >> 20} MiB", code="model_invalid")
        return path.read_bytes()


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise PyvlmError(f"{path} is not UTF-8", code="model_invalid") from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object."""
    return parse_object(read_bytes(path), path)


def read_if_any(directory: Path, name: str) -> dict[str, Any]:
    """The object in a side file; empty if there is no such file."""
    path = directory / name
    return read_object(path) if is_file(path) else {}


def parse_object(content: bytes, name: str | Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise PyvlmError(f"{name} is not valid JSON", code="model_invalid") from None
    if not isinstance(value, dict):
        raise PyvlmError(f"{name} does not hold a JSON object", code="model_invalid")
    return value


def file_digest(path: Path) -> str:
    """SHA-256."""
    with reading(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_identity(path: Path) -> tuple[str, int, int]:
    """(path, size, mtime in ns): cheap, and changed by any rewrite."""
    with reading(path):
        stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns
