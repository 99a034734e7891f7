"""One budget of bytes for everything that requests hold, from the HTTP edge to the slot.

A lease is a context manager with an owner; leaving it gives its bytes back. Any thread may call
anything here.
"""

from __future__ import annotations

import threading
from types import TracebackType

from pyvlm.errors import PyvlmError


class ByteLease:
    """The right to hold a number of bytes. Made by `ByteLedger.lease` alone."""

    def __init__(self, ledger: ByteLedger, what: str, beside: ByteLease | None) -> None:
        self._ledger = ledger
        self.what = what
        self.beside = beside
        self.num_bytes = 0  # guarded by the ledger's lock
        self.released = False

    def grow(self, num_bytes: int) -> None:
        """Hold that many bytes more, or raise and hold what was held before: `queue_full`, or
        `body_too_large` if no other lease is to blame, so that waiting would not help."""
        self._ledger._grow(self, num_bytes)

    def release(self) -> None:
        """Give all bytes back; the second call and later ones do nothing."""
        self._ledger._release(self)

    def __enter__(self) -> ByteLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ByteLedger:
    """Invariant: `used_bytes` is the sum over the live leases and never above `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise PyvlmError(
                f"limit_bytes must be positive, not {limit_bytes}", code="invalid_parameter"
            )
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used = 0
        self._leases: set[ByteLease] = set()

    @property
    def used_bytes(self) -> int:
        return self._used

    def lease(self, num_bytes: int, what: str, beside: ByteLease | None = None) -> ByteLease:
        """`what` names the owner in messages and in the table of live leases. `beside`: another
        lease of the same request."""
        lease = ByteLease(self, what, beside)
        with self._lock:
            self._take(lease, num_bytes)
            self._leases.add(lease)
        return lease

    def leases(self) -> list[tuple[str, int]]:
        """(owner, bytes) of each live lease, largest first."""
        with self._lock:
            table = [(lease.what, lease.num_bytes) for lease in self._leases]
        return sorted(table, key=lambda row: (-row[1], row[0]))

    def _grow(self, lease: ByteLease, num_bytes: int) -> None:
        with self._lock:
            if lease.released:
                raise ValueError(f"the lease of {lease.what} was released")
            self._take(lease, num_bytes)

    def _take(self, lease: ByteLease, num_bytes: int) -> None:
        if num_bytes < 0:
            raise ValueError(f"num_bytes is {num_bytes}")
        if self._used + num_bytes > self.limit_bytes:
            own = _held(lease) + _held(lease.beside) + num_bytes
            if own > self.limit_bytes:
                raise PyvlmError(
                    f"the byte ledger is {self.limit_bytes} bytes; this request alone takes at "
                    f"least {own}",
                    code="body_too_large",
                )
            raise PyvlmError(
                f"the byte ledger is {self.limit_bytes} bytes with {self._used} in use: "
                f"no room for {num_bytes} more ({lease.what})",
                code="queue_full",
            )
        self._used += num_bytes
        lease.num_bytes += num_bytes

    def _release(self, lease: ByteLease) -> None:
        with self._lock:
            if lease.released:
                return
            lease.released = True
            self._leases.discard(lease)
            self._used -= lease.num_bytes


def _held(lease: ByteLease | None) -> int:
    return 0 if lease is None or lease.released else lease.num_bytes
