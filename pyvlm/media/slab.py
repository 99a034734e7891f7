"""One block of shared memory for pictures on their way from the workers to the engine.

It has no name: it is passed to the workers by descriptor and vanishes with the last process that
maps it, whatever ends that process, and the size of /dev/shm does not bound it. All of its memory
is reserved at once, so that a lack of memory is an error at start and not a SIGBUS later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading

import numpy as np
import numpy.typing as npt

from pyvlm.errors import PyvlmError
from pyvlm.media.slab_ranges import PAGE
from pyvlm.memory import available_bytes

SLAB_FLAG = "--slab-bytes"

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Slab:
    """Owns the descriptor and this process's mapping.

    `fd` is for passing on. Sealed: no holder of the descriptor, so no worker that a picture has
    taken over, can cut the memory off under the engine.
    """

    def __init__(self, num_bytes: int) -> None:
        if num_bytes < PAGE:
            raise PyvlmError(
                f"{SLAB_FLAG} must be at least {PAGE}, not {num_bytes}",
                code="invalid_parameter",
                param="slab_bytes",
            )
        self.num_bytes = num_bytes // PAGE * PAGE
        self.fd = os.memfd_create("pyvlm-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _reserve(self.fd, self.num_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(self.fd, self.num_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._lock = threading.Lock()

    def write(self, offset: int, data: bytes) -> None:
        """Copies without the GIL."""
        target = np.frombuffer(self._memory, np.uint8, len(data), offset)
        np.copyto(target, np.frombuffer(data, np.uint8))

    def floats(self, offset: int, count: int) -> npt.NDArray[np.float32]:
        """A read-only view, which is the base of all views made of it: it dies after them."""
        view = np.frombuffer(self._memory, np.float32, count, offset)
        view.flags.writeable = False
        return view

    def close(self) -> None:
        """Views stay valid: the mapping then goes with the last of them. Idempotent."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd < 0:
            return
        os.close(fd)
        with contextlib.suppress(BufferError):
            self._memory.close()


def _reserve(fd: int, num_bytes: int) -> None:
    # Asked first: a control group at its limit may answer an allocation with SIGKILL.
    if (available := available_bytes()) < num_bytes:
        raise _no_memory(num_bytes, f"{available} bytes are available")
    os.ftruncate(fd, num_bytes)
    while True:
        try:
            return os.posix_fallocate(fd, 0, num_bytes)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            raise _no_memory(num_bytes, "the system has no more") from None


def _no_memory(num_bytes: int, reason: str) -> PyvlmError:
    return PyvlmError(
        f"the shared memory for pictures ({SLAB_FLAG}) takes {num_bytes} bytes, but {reason}",
        code="out_of_memory",
        param="slab_bytes",
    )
