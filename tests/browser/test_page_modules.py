"""The page's parsers by themselves, in the browser's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driver import ChatPage
from playwright.sync_api import Browser
from serving import Server

pytestmark = pytest.mark.browser

_SSE = """async ([bytes, cut]) => {
  const { readEvents } = await import("./static/sse.js");
  const all = Uint8Array.from(bytes);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < all.length; at += cut) controller.enqueue(all.slice(at, at + cut));
      controller.close();
    },
  });
  const events = [];
  for await (const event of readEvents(body)) events.push(event);
  return events;
}"""


@pytest.fixture(scope="module")
def page(tiny: Server, browser: Browser) -> Iterator[ChatPage]:
    with browser.new_context() as context:
        yield ChatPage(context, tiny.url).open()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_events_do_not_depend_on_where_the_stream_is_cut(
    page: ChatPage, newline: str, cut: int
) -> None:
    lines = ["data: a ü 🎈", "", ": note", "event: x", "data:b", "data: c", "", "", "data: lost"]
    stream = newline.join(lines).encode()
    events = page.page.evaluate(_SSE, [list(stream), cut])
    assert events == [{"data": "a ü 🎈"}, {"comment": "note"}, {"data": "b\nc"}]


def _text(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


def _code(text: str) -> dict[str, Any]:
    return {"kind": "code", "text": text}


def _bold(text: str) -> dict[str, Any]:
    return {"kind": "bold", "text": text}


@pytest.mark.parametrize(
    ("source", "blocks"),
    [
        ("", []),
        ("one\n\ntwo", [_text("one\n\ntwo")]),
        ("a\n```py\nx = 1\n```\nb", [_text("a"), _code("x = 1"), _text("b")]),
        ("```\nopen\n", [_code("open\n")]),
        ("````\n```\n````", [_code("```")]),
        ("~~~\n```\n~~~", [_code("```")]),
        ("```\n\n```", [_code("")]),
        ("`` ``` ``", [_text("`` ``` ``")]),
    ],
)
def test_blocks(page: ChatPage, source: str, blocks: list[dict[str, Any]]) -> None:
    parse = "async (s) => (await import('./static/markdown.js')).parseBlocks(s)"
    assert page.page.evaluate(parse, source) == blocks


@pytest.mark.parametrize(
    ("source", "pieces"),
    [
        ("plain", [_text("plain")]),
        ("a **b** c", [_text("a "), _bold("b"), _text(" c")]),
        ("`x` and ``y`z``", [_code("x"), _text(" and "), _code("y`z")]),
        ("2 ** 3 ** 4", [_text("2 ** 3 ** 4")]),
        ("**open", [_text("**open")]),
        ("`open", [_text("`open")]),
        ("`**x**`", [_code("**x**")]),
    ],
)
def test_pieces(page: ChatPage, source: str, pieces: list[dict[str, Any]]) -> None:
    parse = "async (s) => (await import('./static/markdown.js')).parseInline(s)"
    assert page.page.evaluate(parse, source) == pieces


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", ["**a ", "`a ", "``a`", "`", "*", "**", "```\n~~~ "])
def test_texts_full_of_open_marks_do_not_hang_the_page(page: ChatPage, piece: str) -> None:
    """An answer is parsed anew for each frame."""
    text = piece * 20_000
    lengths = page.page.evaluate(
        """async (text) => {
          const { parseInline, parseBlocks } = await import("./static/markdown.js");
          const length = (pieces) => pieces.reduce((sum, piece) => sum + piece.text.length, 0);
          return [length(parseInline(text)), length(parseBlocks(text))];
        }""",
        text,
    )
    assert 0 < lengths[0] <= len(text)
    assert 0 <= lengths[1] <= len(text)


@pytest.mark.parametrize(
    ("comment", "times"),
    [
        ("server-timing queue;dur=1.5, encode;dur=20", {"queue": 0.0015, "encode": 0.02}),
        ("ping", None),
        ("server-timing nonsense", {}),
    ],
)
def test_stage_times(page: ChatPage, comment: str, times: dict[str, float] | None) -> None:
    parse = "async (s) => (await import('./static/stages.js')).parseStages(s)"
    assert page.page.evaluate(parse, comment) == times
