from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvlm.errors import PyvlmError
from pyvlm.generation import StopMatcher, TextStream, check_stops
from tests.unit.prompting import tokenizer


def run(stops: list[str], chunks: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    parts = [matcher.push(chunk) for chunk in chunks]
    if not matcher.matched:
        parts.append(matcher.flush())
    return parts, matcher.matched


def by_character(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule itself: read on until some stop string is complete, cut the longest such."""
    for end in range(1, len(text) + 1):
        ends = [s for s in stops if text[:end].endswith(s)]
        if ends:
            return text[: end - max(map(len, ends))], True
    return text, False


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("ab¢🎉", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab¢🎉", max_size=4), max_size=12),
)
def test_any_cutting_gives_the_same_text(stops: list[str], chunks: list[str]) -> None:
    parts, matched = run(stops, chunks)
    assert ("".join(parts), matched) == by_character(stops, "".join(chunks))


@pytest.mark.parametrize(
    ("stops", "chunks", "parts", "matched"),
    [
        (["END"], ["xE", "N", "D tail"], ["x", "", ""], True),
        (["END"], ["xE", "N", "x"], ["x", "", "ENx", ""], False),
        (["ab", "abc"], ["xabc"], ["x"], True),
        (["abc", "ab"], ["xa", "bc"], ["x", ""], True),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], True),
        (["aab"], ["aaa", "b"], ["a", ""], True),
        (["x"], ["x"], [""], True),
        ([], ["a", "b"], ["a", "b", ""], False),
        (["END"], ["EN"], ["", "EN"], False),
    ],
)
def test_what_is_withheld_and_when(stops, chunks, parts, matched) -> None:
    assert run(stops, chunks) == (parts, matched)


def test_nothing_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["a"] * 17, ["x" * 1025]])
def test_bad_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(PyvlmError) as caught:
        check_stops(stops)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "stop")


def test_five_stops_and_repeats_are_fine() -> None:
    assert check_stops(["a", "b", "c", "d", "e", "a"]) == ("a", "b", "c", "d", "e")


def test_tokens_are_counted_up_to_the_one_that_completes_the_stop() -> None:
    ids = tokenizer().encode("one two three four")
    stream = TextStream(tokenizer(), [" three"])
    text = stream.push(ids)
    assert text == "one two"
    assert stream.stopped
    consumed = tokenizer().decode(ids[: stream.num_tokens])
    assert " three" in consumed
    assert " three" not in tokenizer().decode(ids[: stream.num_tokens - 1])
    assert stream.push(ids) == ""
    assert stream.finish() == ""


def test_stop_that_begins_inside_a_character_of_several_tokens() -> None:
    ids = tokenizer().encode("a🎉b")
    stream = TextStream(tokenizer(), ["🎉b"])
    assert [stream.push([i]) for i in ids] == ["a", "", "", "", "", ""]
    assert stream.stopped
    assert stream.num_tokens == len(ids)


def test_finish_flushes_detokenizer_then_matcher() -> None:
    ids = tokenizer().encode("aE🎉")[:-1]
    stream = TextStream(tokenizer(), ["END"])
    assert stream.push(ids) == "a"
    assert stream.finish() == "E\ufffd"
    stream = TextStream(tokenizer(), ["\ufffd"])
    assert stream.push(ids) == "aE"
    assert stream.finish() == ""
    assert stream.stopped
