"""What goes wrong is shown with its code and with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import KEY, OpenPage
from playwright.sync_api import expect
from serving import Server

from pyvlm.errors import ERROR_CODES

pytestmark = pytest.mark.browser

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def test_a_broken_picture_comes_back_marked(
    tiny: Server, open_page: OpenPage, examples: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(PNG_MAGIC + b"junk")
    page = open_page(tiny).open_connected()
    page.attach(examples / "red_circle.png")
    page.ask("What colour is the shape?")
    page.attach(examples / "number_42.png", broken)
    page.send("What is this?")

    expect(page.errors).to_have_count(1)
    assert page.errors.locator(".code").inner_text() == "image_decode_failed"
    assert page.errors.locator(".status").inner_text() == "HTTP 400"
    assert "image 2" in page.errors.locator(".message").inner_text()
    assert "Replace it" in page.errors.locator(".advice").inner_text()
    expect(page.by_id("question")).to_have_value("What is this?")
    wrong = page.thumbnails.evaluate_all("all => all.map(e => e.classList.contains('wrong'))")
    assert wrong == [False, True]
    expect(page.thumbnails.nth(1).get_by_role("img")).to_have_text("broken.png")

    page.page.get_by_role("button", name="Remove picture 2, broken.png").click()
    page.send("What is this?")
    expect(page.answers).to_have_count(3)
    page.finished()
    roles = [message["role"] for message in page.sent[2]["messages"]]
    assert roles == ["user", "assistant", "user"]
    page.forgive("status of 400")


def test_what_is_plainly_over_a_limit_is_refused_before_it_is_sent(
    tiny: Server, open_page: OpenPage, examples: Path, tmp_path: Path
) -> None:
    limits = tiny.call("/v1/models")["data"][0]["limits"]
    page = open_page(tiny).open_connected()
    notice = page.by_id("notice")
    choose = page.by_id("file-input").set_input_files

    large, notes = tmp_path / "large.png", tmp_path / "notes.txt"
    with large.open("wb") as file:
        file.truncate(limits["max_image_bytes"] + 1)
    notes.write_text("text")
    choose([large])
    expect(notice).to_contain_text("large.png has 20 MiB")
    choose([notes])
    expect(notice).to_contain_text("notes.txt: the server takes PNG")
    choose([examples / "red_circle.png"] * (limits["max_images"] + 1))
    expect(notice).to_contain_text(f"this would be {limits['max_images'] + 1}")
    expect(page.thumbnails).to_have_count(0)

    page.attach(examples / "red_circle.png")
    expect(notice).to_be_hidden()


def test_a_wrong_setting_opens_the_drawer_or_is_named_by_the_server(
    tiny: Server, open_page: OpenPage
) -> None:
    page = open_page(tiny).open_connected()
    page.set(temperature="9")
    page.send("Hello")
    expect(page.by_id("drawer")).to_be_visible()
    assert page.page.evaluate("document.activeElement.name") == "temperature"
    page.page.keyboard.press("Escape")
    expect(page.by_id("question")).to_have_value("Hello")
    assert page.sent == []

    page.set(temperature="", max_completion_tokens="100000000")
    page.send("Hello")
    expect(page.errors).to_have_count(1)
    assert page.errors.locator(".code").inner_text() in ("context_overflow", "invalid_parameter")
    page.forgive("status of 400")


def test_a_server_out_of_reach_is_an_error_like_others(tiny: Server, open_page: OpenPage) -> None:
    page = open_page(tiny).open_connected()
    page.page.context.set_offline(True)
    page.send("Hello")
    expect(page.errors.locator(".code")).to_have_text("unreachable")
    expect(page.by_id("question")).to_have_value("Hello")
    page.page.context.set_offline(False)
    page.page.keyboard.press("Enter")
    expect(page.answers.nth(1).locator(".text")).not_to_be_empty()
    page.finished()
    page.forgive("ERR_INTERNET_DISCONNECTED")


def test_a_page_that_starts_without_its_server_connects_later(
    tiny: Server, open_page: OpenPage
) -> None:
    page = open_page(tiny)
    page.page.route("**/v1/models", lambda route: route.abort())
    page.open()
    expect(page.by_id("notice")).to_contain_text("unreachable")
    page.page.unroute("**/v1/models")
    page.page.get_by_role("button", name="Try again").click()
    expect(page.by_id("model-summary")).to_have_text("tiny · text and pictures")
    expect(page.by_id("notice")).to_be_hidden()
    page.forgive("ERR_FAILED")


def test_the_key_is_asked_for_and_kept_in_the_tab(locked: Server, open_page: OpenPage) -> None:
    page = open_page(locked).open()
    dialog = page.by_id("key-dialog")
    for key in ("wrong", KEY):
        expect(dialog).to_be_visible()
        page.by_id("key-input").fill(key)
        page.page.keyboard.press("Enter")
    expect(page.by_id("model-summary")).to_contain_text("text and pictures")
    expect(dialog).to_be_hidden()
    page.ask("Hello")

    assert KEY in page.page.evaluate("Object.values(sessionStorage)")
    assert page.page.evaluate("localStorage.length") == 0
    assert page.page.evaluate("document.cookie") == ""
    page.page.reload()
    expect(page.by_id("model-summary")).to_contain_text("text and pictures")

    page.page.get_by_role("button", name="Settings").click()
    page.page.get_by_role("button", name="Forget the API key").click()
    page.page.get_by_role("button", name="Close settings").click()
    page.send("Hello again")
    expect(dialog).to_be_visible()
    page.page.keyboard.press("Escape")
    expect(page.by_id("notice")).to_contain_text("invalid_api_key")
    expect(page.by_id("question")).to_have_value("Hello again")
    page.by_id("question").press("Enter")
    page.by_id("key-input").fill(KEY)
    page.page.keyboard.press("Enter")
    expect(page.answers).to_have_count(1)
    page.finished()
    page.forgive("status of 401")


def test_every_error_code_has_its_advice(tiny: Server, open_page: OpenPage) -> None:
    page = open_page(tiny).open()
    codes = page.page.evaluate(
        "async () => Object.keys((await import('./static/errors.js')).ADVICE)"
    )
    assert set(ERROR_CODES) - set(codes) == set()
