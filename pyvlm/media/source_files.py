"""Pictures in files: named by a client under one directory, or by whoever runs the process.

Only regular files are read, through a descriptor that was checked after it was opened. Opening
never waits (a FIFO without a writer would) and reading stops at the policy's size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source import FileSource, fetch_failed

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BYTES = 1 << 20


def read_image_files(paths: Sequence[str | Path], policy: MediaPolicy) -> list[bytes]:
    """Files that the caller may name freely: the command line's and the library's."""
    policy.require_within("max_images", len(paths), "images in the request", None)
    images = []
    for index, path in enumerate(paths):
        images.append(_read_named_file(path, policy, index))
        total = sum(map(len, images))
        policy.require_within("max_request_image_bytes", total, "bytes of images", None)
    return images


def _read_named_file(path: str | Path, policy: MediaPolicy, index: int) -> bytes:
    try:
        with _opened(path) as descriptor:
            return _read(descriptor, policy, index)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no file name"
        raise fetch_failed(index, f"{path}: {reason}") from None


def read_allowed_file(source: FileSource, policy: MediaPolicy, index: int) -> bytes:
    """A file that a client named. One message for all that is wrong with it: it tells nobody
    which paths exist."""
    given = policy.allowed_local_media_path
    if given is None:
        raise policy.violation("allowed_local_media_path", "a file: URL", index)
    try:
        root = os.path.realpath(os.fsencode(given))
        steps = _steps_below((os.fsencode(given), root), source.path)
        if steps is None:
            raise policy.violation("allowed_local_media_path", "a path outside of it", index)
        with _opened_below(root, steps) as descriptor:
            return _read(descriptor, policy, index)
    except (OSError, ValueError):
        raise fetch_failed(index, "the file cannot be read") from None


def _steps_below(roots: tuple[bytes, bytes], path: bytes) -> list[bytes] | None:
    """The parts of the path below the root (as given, without links); None if it leads elsewhere.

    What the text already shows to be outside is never looked up.
    """
    if not any(path.startswith(root + b"/") for root in roots):
        return None
    prefix = roots[1] + b"/"
    resolved = os.path.realpath(path)
    return resolved[len(prefix) :].split(b"/") if resolved.startswith(prefix) else None


@contextmanager
def _opened_below(root: bytes, steps: Sequence[bytes]) -> Iterator[int]:
    """Each step is opened from the one before and follows no link: a part that was swapped for a
    link after it had been resolved is an error."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps[:-1]:
            inner = os.open(step, _OPEN_STEP, dir_fd=folder)
            os.close(folder)
            folder = inner
        with _opened(steps[-1], os.O_NOFOLLOW, folder) as descriptor:
            yield descriptor
    finally:
        os.close(folder)


@contextmanager
def _opened(path: str | Path | bytes, flags: int = 0, folder: int | None = None) -> Iterator[int]:
    """Devices are not even opened, unless one takes the file's place between the two calls."""
    follow = not flags & os.O_NOFOLLOW
    _require_regular(os.stat(path, dir_fd=folder, follow_symlinks=follow))
    descriptor = os.open(path, _OPEN | flags, dir_fd=folder)
    try:
        _require_regular(os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "it is no regular file")


def _read(descriptor: int, policy: MediaPolicy, index: int) -> bytes:
    limit = policy.max_image_bytes
    policy.require_within("max_image_bytes", os.fstat(descriptor).st_size, "bytes", index)
    data = bytearray()
    while part := os.read(descriptor, min(_READ_BYTES, limit + 1 - len(data))):
        data += part
        policy.require_within("max_image_bytes", len(data), "bytes", index)
    return bytes(data)
