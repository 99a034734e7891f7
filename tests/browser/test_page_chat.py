"""Questions, pictures and answers on the page, against the server itself."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import OpenPage
from playwright.sync_api import Route, expect
from serving import Server

pytestmark = pytest.mark.browser

QUESTION = "What colour is the shape?"


def _chat(text: str, *pictures: Path, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": _data_url(path)}} for path in pictures]
    content = [*parts, {"type": "text", "text": text}]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}


def _data_url(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_the_page_shows_the_answer_and_the_counts_of_the_api(
    tiny: Server, open_page: OpenPage, examples: Path
) -> None:
    picture = examples / "red_circle.png"
    body = _chat(QUESTION, picture, temperature=0)
    direct = tiny.call("/v1/chat/completions", body)

    page = open_page(tiny).open_connected()
    page.set(temperature="0")
    page.attach(picture)
    answer = page.ask(QUESTION)

    assert answer == direct["choices"][0]["message"]["content"].strip()
    assert answer
    usage = direct["usage"]
    facts = page.facts()
    assert facts[:3] == [
        f"{usage['prompt_tokens']} prompt tokens",
        f"{usage['prompt_tokens_details']['image_positions']} image positions",
        f"{usage['completion_tokens']} answer token" + "s" * (usage["completion_tokens"] != 1),
    ]
    assert any(fact.startswith("first token ") for fact in facts)
    assert page.sent == [body | {"stream": True, "stream_options": {"include_usage": True}}]


def test_stage_times_of_the_server_are_shown(
    tiny: Server, open_page: OpenPage, examples: Path
) -> None:
    page = open_page(tiny).open_connected()
    page.attach(examples / "red_circle.png")
    page.ask(QUESTION)
    stages = page.answers.nth(0).locator(".stages")
    stages.locator("summary").click()
    legend = stages.locator("li").all_inner_texts()
    assert {"decode image", "transform", "encode", "prefill"} <= {
        " ".join(entry.split()[:-2]) for entry in legend
    }
    widths = stages.locator(".stage").evaluate_all("all => all.map(e => e.offsetWidth)")
    assert len(widths) == len(legend)
    assert sum(widths) > 200


def test_pictures_are_sent_in_the_order_shown_and_without_the_removed(
    tiny: Server, open_page: OpenPage, examples: Path
) -> None:
    circle, star, number = (
        examples / f"{name}.png" for name in ("red_circle", "star_on_yellow", "number_42")
    )
    page = open_page(tiny).open_connected()
    page.attach(circle, number)
    page.drop([star])
    page.paste([circle])
    expect(page.thumbnails).to_have_count(4)
    page.page.get_by_role("button", name="Remove picture 2, number_42.png").click()
    expect(page.thumbnails).to_have_count(3)
    page.ask("Which picture shows a star?")

    assert (
        page.sent[0]["messages"]
        == _chat("Which picture shows a star?", circle, star, circle)["messages"]
    )
    assert page.questions.locator("img").count() == 3
    expect(page.thumbnails).to_have_count(0)


def test_a_conversation_sends_its_earlier_turns_until_it_is_reset(
    tiny: Server, open_page: OpenPage, examples: Path
) -> None:
    page = open_page(tiny).open_connected()
    page.set(system="Answer briefly.", temperature="0")
    page.attach(examples / "red_circle.png")
    first = page.ask(QUESTION)
    page.ask("What shape is it?")
    roles = [message["role"] for message in page.sent[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert page.sent[1]["messages"][2]["content"].strip() == first
    assert page.sent[1]["messages"][1]["content"][0]["type"] == "image_url"

    page.page.get_by_role("button", name="New chat").click()
    expect(page.answers).to_have_count(0)
    expect(page.by_id("welcome")).to_be_visible()
    page.ask("Hello")
    assert [message["role"] for message in page.sent[2]["messages"]] == ["system", "user"]


@pytest.mark.parametrize("way", ["key", "button"])
def test_an_answer_streams_and_stops(talkative: Server, open_page: OpenPage, way: str) -> None:
    page = open_page(talkative).open_connected()
    page.set(temperature="0", max_completion_tokens="7000")
    page.send("Go on")
    text = page.answers.nth(0).locator(".text")
    expect(text).not_to_be_empty()
    early = len(text.inner_text())
    page.page.wait_for_function(
        "early => document.querySelector('.answer .text').innerText.length > early + 20", arg=early
    )
    assert page.answers.nth(0).get_attribute("aria-busy") == "true"
    if way == "key":
        page.page.keyboard.press("Escape")
    else:
        page.page.get_by_role("button", name="Stop the answer").click()

    stopped = page.finished(0)
    assert page.answers.nth(0).locator(".note").inner_text() == "Stopped."
    _wait_until_idle(page, talkative)
    page.set(max_completion_tokens="3")
    page.ask("And now?")
    assert page.answers.nth(1).locator(".note").inner_text() == "Cut at the token limit."
    assert page.sent[1]["messages"][1]["role"] == "assistant"
    assert len(page.sent[1]["messages"][1]["content"]) >= len(stopped) // 2


def test_a_new_chat_ends_the_running_answer(talkative: Server, open_page: OpenPage) -> None:
    page = open_page(talkative).open_connected()
    page.set(temperature="0", max_completion_tokens="7000")
    page.send("Go on")
    expect(page.answers.nth(0).locator(".text")).not_to_be_empty()
    page.page.get_by_role("button", name="New chat").click()
    expect(page.answers).to_have_count(0)
    _wait_until_idle(page, talkative)
    page.set(max_completion_tokens="2")
    page.ask("Hello")
    assert [message["role"] for message in page.sent[1]["messages"]] == ["user"]


def _wait_until_idle(page: Any, server: Server) -> None:
    """Until no sequence runs: the stop has reached the engine."""
    for _ in range(300):
        _, text, _ = server.fetch("/metrics")
        running = [line for line in text.decode().splitlines() if "requests_running" in line]
        values = [float(line.split()[-1]) for line in running if not line.startswith("#")]
        assert values, "the metric of running requests is gone"
        if not any(values):
            return
        page.page.wait_for_timeout(100)
    raise AssertionError("the engine still works on a stopped answer")


def _as_stream(route: Route, *events: object, end: str = "data: [DONE]\n\n") -> None:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    route.fulfill(content_type="text/event-stream", body=body)


def _delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def test_what_a_model_says_stays_text(tiny: Server, open_page: OpenPage) -> None:
    hostile = (
        '<img src="http://192.0.2.1/a.png" onerror="alert(1)"><script>alert(1)</script>\n'
        "![x](http://192.0.2.1/b.png) [y](javascript:alert(1)) **<b>bold</b>**\n"
        '```html\n<iframe src="http://192.0.2.1/"></iframe>\n```\n'
    )
    page = open_page(tiny).open_connected()
    page.page.route("**/v1/chat/completions", lambda route: _as_stream(route, _delta(hostile)))
    shown = page.ask("Say something")
    for piece in ("<script>alert(1)</script>", "![x](http://192.0.2.1/b.png)", "<b>bold</b>"):
        assert piece in shown
    tags = page.answers.locator(".text *").evaluate_all("all => all.map(e => e.tagName)")
    assert set(tags) == {"P", "SPAN", "STRONG", "PRE", "CODE"}
    # No request left the page: open_page looks at that for every test.


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", "stream_cut"),
        ('data: {"error": {"message": "m", "code": "engine_failed"}}\n\n', "engine_failed"),
    ],
)
def test_an_answer_that_breaks_off_keeps_its_text_and_says_why(
    tiny: Server, open_page: OpenPage, end: str, code: str
) -> None:
    page = open_page(tiny).open_connected()
    page.page.route(
        "**/v1/chat/completions", lambda route: _as_stream(route, _delta("Half an"), end=end)
    )
    assert page.ask("Say something") == "Half an"
    assert page.errors.locator(".code").inner_text() == code
