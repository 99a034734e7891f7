"""By keyboard, on a phone, in the dark, with a text-only model; what the server says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import OpenPage
from driver import ChatPage
from playwright.sync_api import expect
from serving import Server

pytestmark = pytest.mark.browser

PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 640},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


def _focus(page: ChatPage) -> str:
    return str(page.page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))


def test_everything_can_be_done_by_keyboard(
    tiny: Server, open_page: OpenPage, examples: Path
) -> None:
    page = open_page(tiny).open_connected()
    press = page.page.keyboard.press
    assert _focus(page) == "question"  # ready to type

    page.attach(examples / "red_circle.png")
    press("Shift+Tab")
    assert _focus(page) == "attach"
    with page.page.expect_file_chooser() as chooser:
        press("Enter")
    chooser.value.set_files(examples / "number_42.png")
    expect(page.thumbnails).to_have_count(2)
    press("Shift+Tab")
    assert _focus(page) == "Remove picture 2, number_42.png"
    press("Space")
    assert _focus(page) == "Remove picture 1, red_circle.png"
    expect(page.thumbnails).to_have_count(1)

    press("Tab")
    press("Tab")
    page.page.keyboard.type("What colour")
    press("Shift+Enter")
    page.page.keyboard.type("is the shape?")
    press("Tab")
    assert _focus(page) == "send"
    press("Enter")
    page.finished(0)
    assert page.sent[0]["messages"][0]["content"][1]["text"] == "What colour\nis the shape?"
    assert _focus(page) == "question"


def test_the_drawer_keeps_the_focus_and_gives_it_back(tiny: Server, open_page: OpenPage) -> None:
    page = open_page(tiny).open_connected()
    page.by_id("open-drawer").focus()
    page.page.keyboard.press("Enter")
    seen = set()
    for _ in range(20):
        page.page.keyboard.press("Tab")
        seen.add(page.page.evaluate("document.activeElement.closest('#drawer, body').id"))
    assert seen <= {"drawer", ""}  # the browser's own controls may come in between
    assert "drawer" in seen
    page.page.keyboard.press("Escape")
    expect(page.by_id("drawer")).to_be_hidden()
    assert _focus(page) == "open-drawer"


def test_what_is_said_is_announced_in_sentences(tiny: Server, open_page: OpenPage) -> None:
    page = open_page(tiny).open_connected()
    answer = page.ask("What is the capital of France?")
    announced = page.by_id("announcer")
    assert announced.get_attribute("aria-live") == "polite"
    assert " ".join(announced.locator("p").all_inner_texts()) == answer


def test_controls_have_names(tiny: Server, open_page: OpenPage, examples: Path) -> None:
    page = open_page(tiny).open_connected()
    page.attach(examples / "red_circle.png")
    page.ask("What colour is the shape?")
    page.attach(examples / "red_circle.png")
    page.by_id("open-drawer").click()
    nameless = page.page.evaluate("""() =>
      [...document.querySelectorAll("button, input:not([hidden]), textarea, select, img, dialog")]
        .filter((e) => !(e.ariaLabel || e.alt || e.textContent.trim() || e.labels?.length
          || e.getAttribute("aria-labelledby") || e.matches(".bar img")))
        .map((e) => e.outerHTML)""")
    assert nameless == []


def test_a_phone_shows_all_of_it(tiny: Server, open_page: OpenPage, examples: Path) -> None:
    page = open_page(tiny, **PHONE).open_connected()
    page.attach(*[examples / "red_circle.png"] * 6)
    page.ask("What colour is the shape?")
    page.attach(examples / "red_circle.png")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("attach", "send", "new-chat", "open-drawer"):
        box = page.by_id(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= 360, name
        assert box["y"] + box["height"] <= 640, name
        assert min(box["width"], box["height"]) >= 40, name
    expect(page.answers.last.locator(".facts-line")).to_be_in_viewport()

    page.by_id("open-drawer").tap()
    assert page.page.evaluate("document.querySelector('#drawer').scrollWidth") <= 360
    size = page.page.locator("#settings [name=seed]").evaluate(
        "e => parseFloat(getComputedStyle(e).fontSize)"
    )
    assert size >= 16  # smaller ones make phones zoom in


_CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const [r, g, b] = [0, 2, 4].map((at) => channel(parseInt(hex.slice(at, at + 2), 16)));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [["--text", "--back"], ["--text", "--surface"], ["--text", "--question"],
    ["--text", "--raised"], ["--soft", "--back"], ["--soft", "--surface"], ["--soft", "--bad-back"],
    ["--soft", "--question"], ["--bad", "--bad-back"], ["--text", "--bad-back"],
    ["--accent", "--back"], ["--accent-text", "--accent"]];
  return Object.fromEntries(pairs.map(([a, b]) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return [`${a} on ${b}`, (high + 0.05) / (low + 0.05)];
  }));
}"""


def test_both_schemes_can_be_read(tiny: Server, open_page: OpenPage) -> None:
    backs = set()
    for scheme in ("light", "dark"):
        page = open_page(tiny, color_scheme=scheme).open_connected()
        backs.add(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrasts = page.page.evaluate(_CONTRASTS)
        assert {pair: ratio for pair, ratio in contrasts.items() if ratio < 4.5} == {}, scheme
    assert len(backs) == 2


def test_a_text_only_model_takes_no_pictures(
    talkative: Server, open_page: OpenPage, examples: Path
) -> None:
    page = open_page(talkative).open_connected()
    expect(page.by_id("model-summary")).to_have_text("talkative · text only")
    expect(page.by_id("attach")).to_be_disabled()
    assert page.by_id("attach").get_attribute("title") == "This model takes no pictures"
    page.drop([examples / "red_circle.png"])
    expect(page.by_id("notice")).to_have_text("talkative takes no pictures.")
    page.paste([examples / "red_circle.png"])
    expect(page.thumbnails).to_have_count(0)


def test_what_the_server_reports_is_shown(tiny: Server, open_page: OpenPage) -> None:
    entry = tiny.call("/v1/models")["data"][0]
    page = open_page(tiny).open_connected()
    page.by_id("open-drawer").click()
    facts = page.by_id("server-facts")
    shown = dict(
        zip(
            facts.locator("dt").all_inner_texts(),
            facts.locator("dd").all_inner_texts(),
            strict=True,
        )
    )
    assert shown["model"] == "tiny"
    assert shown["max model len"] == f"{entry['max_model_len']:,}"
    assert shown["modalities"] == "text, image"
    assert shown["image formats"] == ", ".join(entry["capabilities"]["image_formats"])
    assert shown["max image"] == "20 MiB"
    assert shown["max image pixels"] == "50,000,000"
    assert shown["not supported"].split(", ") == list(entry["unsupported_parameters"]["chat"])
    accepted = page.by_id("file-input").get_attribute("accept") or ""
    assert accepted.split(",") == [
        f"image/{name.lower()}" for name in entry["capabilities"]["image_formats"]
    ]


def test_settings_last_as_long_as_the_tab(tiny: Server, open_page: OpenPage) -> None:
    page = open_page(tiny).open_connected()
    page.set(system="Be brief.", temperature="0.5", seed="7", top_k="3", min_p="0.1", top_p="0.9")
    page.page.reload()
    expect(page.by_id("model-summary")).to_contain_text("pictures")
    page.ask("Hello")
    sent = page.sent[0]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    names = ("temperature", "seed", "top_k", "min_p", "top_p")
    assert {name: sent[name] for name in names} == {
        "temperature": 0.5,
        "seed": 7,
        "top_k": 3,
        "min_p": 0.1,
        "top_p": 0.9,
    }
    assert "presence_penalty" not in sent
    page.by_id("open-drawer").click()
    page.by_id("reset-settings").click()
    page.by_id("close-drawer").click()
    page.ask("Hello")
    assert set(page.sent[1]) == {"model", "messages", "stream", "stream_options"}


def test_an_answer_can_be_copied(tiny: Server, open_page: OpenPage, examples: Path) -> None:
    """The very text, as the server sent it; where the clipboard is closed, the button says so."""
    page = open_page(tiny).open_connected()
    context = page.page.context
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=tiny.url)
    page.attach(examples / "red_circle.png")
    answer = page.ask("What colour is the shape?")
    page.ask("Hello")
    copy = page.answers.nth(0).get_by_role("button", name="Copy")
    copy.focus()
    page.page.keyboard.press("Enter")
    expect(page.answers.nth(0).get_by_role("button", name="Copied")).to_be_visible()
    assert page.page.evaluate("() => navigator.clipboard.readText()").strip() == answer
    page.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject('no'); }")
    page.answers.nth(1).get_by_role("button", name="Copy").click()
    expect(page.answers.nth(1).get_by_role("button", name="Not allowed")).to_be_visible()
