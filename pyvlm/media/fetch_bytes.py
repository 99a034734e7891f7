"""Counts the bytes of a request's pictures while they arrive, and stops at the first too many."""

from __future__ import annotations

from pyvlm.media.ledger import ByteLease
from pyvlm.media.policy import MediaPolicy


class ByteBudget:
    """What all pictures of one request may bring together. Used in one event loop."""

    def __init__(self, policy: MediaPolicy, lease: ByteLease | None = None) -> None:
        self._policy = policy
        self._lease = lease
        self._num_bytes = 0

    def picture(self, index: int) -> PictureBudget:
        return PictureBudget(self._policy, self, index)

    def _take(self, num_bytes: int) -> None:
        total = self._num_bytes + num_bytes
        self._policy.require_within("max_request_image_bytes", total, "bytes of images", None)
        if self._lease is not None:
            self._lease.grow(num_bytes)
        self._num_bytes = total


class PictureBudget:
    """What one picture may bring."""

    def __init__(self, policy: MediaPolicy, request: ByteBudget, index: int) -> None:
        self._policy = policy
        self._request = request
        self._index = index
        self._num_bytes = 0

    def announce(self, num_bytes: int) -> None:
        """The size that a server declares: refused if too large, believed in no other way."""
        self._policy.require_within("max_image_bytes", num_bytes, "bytes", self._index)

    def take(self, num_bytes: int) -> None:
        """Called for each part before it is kept."""
        total = self._num_bytes + num_bytes
        self._policy.require_within("max_image_bytes", total, "bytes", self._index)
        self._request._take(num_bytes)
        self._num_bytes = total
