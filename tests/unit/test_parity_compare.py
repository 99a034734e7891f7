"""The rules of the comparison themselves: what they must catch and what they must let pass."""

from __future__ import annotations

import numpy as np
import pytest

from tools.parity.compare import compare_greedy, compare_hidden, compare_logits, top2_gap
from tools.parity.tolerances import tolerance

ROWS = np.array([[0.0, 4.0, 1.0, -3.0], [2.0, 1.99, -2.0, -1.99]], np.float32)


def test_top2_gap() -> None:
    np.testing.assert_allclose(top2_gap(ROWS), [3.0, 0.01], atol=1e-6)


def test_equal_logits_pass_even_with_no_tolerance() -> None:
    result = compare_logits(ROWS, ROWS, 0.0)
    assert result.ok
    assert (result.max_abs, result.agreeing, result.near_ties) == (0.0, 2, 0)


def test_a_near_tie_may_flip() -> None:
    ours = ROWS.copy()
    ours[1, :2] = [1.99, 2.0]
    result = compare_logits(ours, ROWS, 0.01)
    assert result.ok
    assert (result.agreeing, result.near_ties, result.flips) == (1, 1, ())


def test_a_flip_across_a_clear_gap_fails() -> None:
    ours = ROWS[:, ::-1].copy()
    result = compare_logits(ours, ROWS, 0.001)
    assert not result.ok
    assert result.flips == (0, 1)


def test_one_wrong_value_fails() -> None:
    ours = ROWS.copy()
    ours[0, 3] += 0.1
    assert not compare_logits(ours, ROWS, 0.03).ok
    assert not compare_hidden(ours, ROWS, 0.01).ok


def test_non_finite_values_are_refused() -> None:
    ours = ROWS.copy()
    ours[0, 0] = np.nan
    with pytest.raises(ValueError, match="non-finite"):
        compare_logits(ours, ROWS, 1.0)


def test_greedy_stops_at_the_first_difference() -> None:
    logits = np.tile(ROWS, (2, 1))
    theirs = np.array([1, 0, 1, 0], np.int32)
    assert compare_greedy(theirs, theirs, logits, 0.0).ok
    near = compare_greedy(np.array([1, 1, 0, 0], np.int32), theirs, logits, 0.01)
    assert (near.first_difference, near.ours, near.theirs, near.ok) == (1, 1, 0, True)
    far = compare_greedy(np.array([2, 0, 1, 0], np.int32), theirs, logits, 0.01)
    assert (far.first_difference, far.ok) == (0, False)
    with pytest.raises(ValueError, match="tokens against"):
        compare_greedy(theirs[:3], theirs, logits, 0.01)


def test_tolerances_grow_with_depth_and_are_looser_for_a_rounded_cache() -> None:
    assert tolerance("f32", 3, 3).logits < tolerance("f16", 3, 3).logits / 10
    assert tolerance("f16", 30).logits > tolerance("f16", 3).logits
    assert tolerance("f16", 3, 12).hidden == tolerance("f32", 3, 12).hidden
