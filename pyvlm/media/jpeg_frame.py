"""What a JPEG's frame header demands of its scans: coefficients, restart markers, bits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from pyvlm.media.corrupt import CorruptImageError

SEQUENTIAL, PROGRESSIVE, ARITHMETIC = (0xC0, 0xC1), (0xC2,), (0xC9, 0xCA)
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_RESTARTS = [bytes((0xFF, 0xD0 + i)) for i in range(8)]


@dataclass(frozen=True, slots=True)
class Component:
    across: int  # blocks of it in one MCU
    down: int


class Frame:
    """Mutable: scans are added in file order, and what they have not brought yet is kept."""

    def __init__(self, marker: int, header: bytes) -> None:
        if len(header) < 6 or len(header) < 6 + 3 * header[5]:
            raise CorruptImageError("has a short frame header")
        self.marker = marker
        self.height, self.width = (int.from_bytes(header[i : i + 2], "big") for i in (1, 3))
        self._components: dict[int, Component] = {}
        for i in range(6, 6 + 3 * header[5], 3):
            across, down = header[i + 1] >> 4, header[i + 1] & 15
            if not 1 <= across <= 4 or not 1 <= down <= 4:
                raise CorruptImageError("has a frame header with unknown values")
            self._components[header[i]] = Component(across, down)
        self._missing = {component: set(range(64)) for component in self._components}

    @property
    def is_whole(self) -> bool:
        """Each coefficient of each component has come down to its last bit."""
        return not any(self._missing.values())

    @property
    def is_progressive(self) -> bool:
        return self.marker in (0xC2, 0xCA)

    def add(self, header: bytes, coded: bytes, interval: int) -> None:
        """One scan: its header, its coded data, the restart interval that holds for it."""
        count = header[0] if header else 0
        if not 1 <= count <= 4 or len(header) < 4 + 2 * count:
            raise CorruptImageError("has a corrupt scan header")
        ids = header[1 : 1 + 2 * count : 2]
        if not set(ids) <= set(self._components):
            raise CorruptImageError("has a scan of an unknown component")
        first, last, precision = header[1 + 2 * count : 4 + 2 * count]
        if not self.is_progressive:
            first, last, precision = 0, 63, 0
        mcus, blocks = self._extent(ids)
        _require_restarts(coded, -(-mcus // interval) - 1 if interval else 0)
        if self.marker in PROGRESSIVE and first == 0 and precision >> 4:
            _require_bits(coded, mcus * blocks)
        if precision & 15 == 0:
            for component in ids:
                self._missing[component].difference_update(range(first, last + 1))

    @cached_property
    def _largest(self) -> tuple[int, int]:
        parts = self._components.values()
        return max(part.across for part in parts), max(part.down for part in parts)

    def _extent(self, ids: bytes) -> tuple[int, int]:
        """MCUs of a scan of these components, and blocks in each."""
        across, down = self._largest
        if len(ids) > 1:
            parts = [self._components[component] for component in ids]
            mcus = -(-self.width // (8 * across)) * -(-self.height // (8 * down))
            return mcus, sum(part.across * part.down for part in parts)
        part = self._components[ids[0]]
        width, height = -(-self.width * part.across // across), -(-self.height * part.down // down)
        return -(-width // 8) * -(-height // 8), 1


def _require_restarts(coded: bytes, expected: int) -> None:
    """In their order, and as many as there are; some encoders write one more behind the last."""
    # Most files have none, which one pass shows instead of eight. A list of them could be huge.
    found = sum(map(coded.count, _RESTARTS)) if _RESTART.search(coded) else 0
    if not expected <= found <= expected + 1:
        raise CorruptImageError("is truncated or corrupt: it lacks restart markers")
    order = b"".join(_RESTARTS) * (found // 8 + 1)
    if b"".join(_RESTART.findall(coded)) != order[: 2 * found]:
        raise CorruptImageError("is corrupt: its restart markers are out of order")


def _require_bits(coded: bytes, needed: int) -> None:
    """A scan that refines the mean values has exactly one bit for each block."""
    seen = len(coded) - coded.count(b"\xff\x00") - 2 * sum(map(coded.count, _RESTARTS))
    if 8 * seen < needed:
        raise CorruptImageError("is truncated or corrupt: a scan lacks blocks")
