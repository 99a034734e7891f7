"""Picture files of this machine, for callers that may read any of them: command line and library.

What a client of the server names goes through `pyvlm.media.fetch` instead.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from pyvlm.errors import PyvlmError
from pyvlm.media.policy import MediaPolicy


def read_images(paths: Sequence[str | os.PathLike[str]], policy: MediaPolicy) -> list[bytes]:
    """Count and size are refused before anything is read; only regular files are opened."""
    policy.check_request([_file_size(path, index) for index, path in enumerate(paths)])
    return [_read(path, index) for index, path in enumerate(paths)]


def _read(path: str | os.PathLike[str], index: int) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(index, path, error.strerror or "it cannot be read") from None


def _file_size(path: str | os.PathLike[str], index: int) -> int:
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no file name"
        raise _unreadable(index, path, reason) from None
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(index, path, "it is no regular file")
    return status.st_size


def _unreadable(index: int, path: str | os.PathLike[str], reason: str) -> PyvlmError:
    return PyvlmError(
        f"image {index}: {os.fspath(path)}: {reason}",
        code="image_fetch_failed",
        param=f"images[{index}]",
    )
