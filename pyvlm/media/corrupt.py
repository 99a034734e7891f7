"""What the readers of single formats raise; decode.py turns it into a typed error."""

from __future__ import annotations


class CorruptImageError(Exception):
    """`reason` is our own text and completes "the PNG data ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
