"""Wakes the pool's thread out of its wait."""

from __future__ import annotations

import os
import threading


class Wake:
    """An event descriptor to select on.

    `set` is also called by finalizers, that is amid any Python code, this class's own included:
    hence the re-entrant lock. Once closed it does nothing, so that a view that outlives the pool
    cannot write to a descriptor that has another owner by then.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
