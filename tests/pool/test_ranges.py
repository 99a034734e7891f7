"""The slab's bookkeeping against a model that knows every page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvlm.media.slab_ranges import PAGE, Range, RangeAllocator

NUM_PAGES = 24
SIZES = st.integers(1, 9 * PAGE)
STEPS = st.one_of(
    st.tuples(st.just("take"), SIZES),
    st.tuples(st.just("take_all"), st.lists(SIZES, min_size=1, max_size=4)),
    st.tuples(st.just("give_back"), st.integers(0, 99)),
    st.tuples(st.just("shrink"), st.tuples(st.integers(0, 99), SIZES)),
)


class PageMap:
    """Every page is free or one range's."""

    def __init__(self) -> None:
        self.pages = [False] * NUM_PAGES

    def set(self, which: Range, used: bool) -> None:
        first, count = which.offset // PAGE, which.size // PAGE
        assert all(page != used for page in self.pages[first : first + count])
        self.pages[first : first + count] = [used] * count

    def first_fit(self, num_bytes: int) -> int | None:
        count = -(-num_bytes // PAGE)
        for first in range(NUM_PAGES - count + 1):
            if not any(self.pages[first : first + count]):
                return first * PAGE
        return None


@given(st.lists(STEPS, max_size=60))
def test_every_range_is_its_own_and_the_lowest_that_fits(steps) -> None:
    ranges, model, live = RangeAllocator(NUM_PAGES * PAGE), PageMap(), []
    for name, argument in steps:
        if name == "take":
            taken, expected = ranges.take(argument), model.first_fit(argument)
            assert (taken is None) == (expected is None)
            if taken is not None:
                assert taken.offset == expected
                assert taken.size == -(-argument // PAGE) * PAGE
                model.set(taken, True)
                live.append(taken)
        elif name == "take_all":
            for found in ranges.take_all(argument) or []:
                model.set(found, True)
                live.append(found)
        elif live and name == "give_back":
            given_back = live.pop(argument % len(live))
            ranges.give_back(given_back)
            model.set(given_back, False)
        elif live and name == "shrink":
            at = argument[0] % len(live)
            size = min(argument[1], live[at].size)
            kept = ranges.shrink(live[at], size)
            assert kept == Range(live[at].offset, -(-size // PAGE) * PAGE)
            if kept.size < live[at].size:
                end = Range(kept.offset + kept.size, live[at].size - kept.size)
                model.set(end, False)
            live[at] = kept
        assert ranges.used_bytes == sum(model.pages) * PAGE
        assert ranges.num_live == len(live)
    for rest in live:
        ranges.give_back(rest)
    assert ranges.take(NUM_PAGES * PAGE) == Range(0, NUM_PAGES * PAGE)


def test_all_or_none() -> None:
    ranges = RangeAllocator(4 * PAGE)
    assert ranges.take_all([2 * PAGE, 3 * PAGE]) is None
    assert ranges.used_bytes == 0
    assert ranges.take_all([2 * PAGE, 2 * PAGE]) == [Range(0, 2 * PAGE), Range(2 * PAGE, 2 * PAGE)]


def test_a_range_is_given_back_once() -> None:
    ranges = RangeAllocator(4 * PAGE)
    taken = ranges.take(PAGE)
    ranges.give_back(taken)
    with pytest.raises(ValueError, match="not live"):
        ranges.give_back(taken)
    again = ranges.take(2 * PAGE)
    with pytest.raises(ValueError, match="not live"):
        ranges.give_back(taken)
    with pytest.raises(ValueError, match="cannot grow"):
        ranges.shrink(again, 3 * PAGE)
