"""Numbers of one comparison, and the rules that decide it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LogitsResult:
    """Of teacher-forced logits [T, V].

    max_abs      largest difference
    max_rel      the same in standard deviations of its position's logits
    agreeing     positions with the same argmax
    near_ties    positions whose top-2 gap is no more than twice the tolerance
    flips        positions outside near ties with another argmax: must be none
    """

    positions: int
    max_abs: float
    max_rel: float
    agreeing: int
    near_ties: int
    flips: tuple[int, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.max_rel <= self.tolerance and not self.flips


@dataclass(frozen=True, slots=True)
class HiddenResult:
    """Of hidden states: largest difference, and in root mean squares of the reference."""

    max_abs: float
    max_rel: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.max_rel <= self.tolerance


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """Of free-running tokens. At the first difference: where, the two tokens, the reference's gap
    between them in its own logits, and twice the tolerance in the same unit."""

    steps: int
    first_difference: int | None = None
    ours: int | None = None
    theirs: int | None = None
    gap: float = 0.0
    allowed_gap: float = 0.0

    @property
    def ok(self) -> bool:
        return self.first_difference is None or self.gap <= self.allowed_gap


def top2_gap(logits: Array) -> Array:
    """[T, V] -> [T]: the best logit above the second."""
    best = np.partition(logits, -2, axis=-1)[..., -2:]
    return np.abs(best[..., 1] - best[..., 0])


def compare_logits(ours: Array, theirs: Array, tolerance: float) -> LogitsResult:
    _check(ours, theirs)
    difference, spread = np.abs(ours - theirs), theirs.std(axis=-1)
    per_position = difference.max(axis=-1)
    near_tie = top2_gap(theirs) <= 2 * tolerance * spread
    same = ours.argmax(axis=-1) == theirs.argmax(axis=-1)
    return LogitsResult(
        positions=len(theirs),
        max_abs=float(difference.max()),
        max_rel=float((per_position / spread).max()),
        agreeing=int(same.sum()),
        near_ties=int(near_tie.sum()),
        flips=tuple(int(i) for i in np.flatnonzero(~same & ~near_tie)),
        tolerance=tolerance,
    )


def compare_hidden(ours: Array, theirs: Array, tolerance: float) -> HiddenResult:
    _check(ours, theirs)
    max_abs = float(np.abs(ours - theirs).max())
    size = float(np.sqrt(np.square(theirs, dtype=np.float64).mean()))
    return HiddenResult(max_abs, max_abs / size, tolerance)


def compare_greedy(
    ours: NDArray[np.int32], theirs: NDArray[np.int32], logits: Array, tolerance: float
) -> GreedyResult:
    """`logits` [steps, V] are the reference's. Up to the first difference both saw the same ids."""
    steps = min(len(ours), len(theirs))
    different = np.flatnonzero(ours[:steps] != theirs[:steps])
    if not different.size:
        if len(ours) != len(theirs):
            raise ValueError(f"{len(ours)} tokens against {len(theirs)}, equal as far as both go")
        return GreedyResult(steps)
    at = int(different[0])
    mine, other, row = int(ours[at]), int(theirs[at]), logits[at]
    gap, allowed = float(row[other] - row[mine]), 2 * tolerance * float(row.std())
    return GreedyResult(steps, at, mine, other, gap, allowed)


def _check(ours: Array, theirs: Array) -> None:
    if ours.shape != theirs.shape:
        raise ValueError(f"shape {ours.shape} against {theirs.shape}")
    if not np.isfinite(ours).all():
        raise ValueError("non-finite values in our result")
