"""A Unix socket and its file, which outlives a server that was killed."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyvlm.errors import PyvlmError


def bind_path(path: str) -> socket.socket:
    """A bound socket. A file that nobody listens on is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            Path(path).unlink()
            listener.bind(path)
    except (OSError, ValueError) as error:
        listener.close()
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        reason = getattr(error, "strerror", None) or "the path is too long or no path"
        raise PyvlmError(
            f"cannot listen on {path}: {reason}",
            code="address_in_use" if in_use else "invalid_parameter",
            param="uds",
        ) from None
    return listener


@contextmanager
def unlinked_at_exit(path: str) -> Iterator[None]:
    """For the file at `path` now; one that has taken its place stays."""
    mine = _identity(path)
    try:
        yield
    finally:
        with suppress(OSError):
            if mine is not None and _identity(path) == mine:
                Path(path).unlink()


def _is_left_over(path: str) -> bool:
    with suppress(OSError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)  # a full backlog: somebody listens
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
