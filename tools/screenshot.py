"""Takes the README's picture of the chat page, from a server that runs.

pyvlm serve tiny &
python -m tools.screenshot --url http://127.0.0.1:8000 --output docs/images/chat.png
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

EXAMPLES = Path(__file__).parents[1] / "examples"
ASKED = ("red_circle.png",), "What colour is the shape?"
NEXT = ("star_on_yellow.png", "two_blue_triangles.png"), "Which picture shows a star?"


def write(page: Page, message: tuple[tuple[str, ...], str]) -> None:
    pictures, question = message
    page.set_input_files("#file-input", [EXAMPLES / name for name in pictures])
    page.fill("#question", question)


def converse(page: Page) -> None:
    """One answered question, and one about two pictures that is ready to be sent."""
    page.click("#open-drawer")
    page.fill("[name=temperature]", "0")
    page.click("#close-drawer")
    write(page, ASKED)
    page.press("#question", "Enter")
    expect(page.locator(".answer .facts-line")).to_be_visible(timeout=60_000)
    page.locator(".answer .stages summary").click()
    write(page, NEXT)
    expect(page.locator("#thumbnails img")).to_have_count(2)


def take(url: str, output: Path, chromium: str, scheme: str) -> None:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(
            viewport={"width": 900, "height": 700}, color_scheme=scheme, device_scale_factor=1.5
        )
        page.goto(url)
        expect(page.locator("#attach")).to_be_enabled()
        converse(page)
        output.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=output)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--output", type=Path, default=Path("docs/images/chat.png"))
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    chosen = parser.parse_args()
    if chosen.chromium is None:
        parser.error("Chromium was not found: tools/install_chromium.sh")
    take(chosen.url, chosen.output, chosen.chromium, chosen.scheme)


if __name__ == "__main__":
    main()
