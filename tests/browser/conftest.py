"""Headless Chromium by its installed path, and servers that tests of this folder share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver import TIMEOUT_MS, ChatPage
from playwright.sync_api import Browser, expect, sync_playwright
from serving import Server, serving

from tools.make_checkpoint import SHAPES, make_checkpoint

KEY = "open-sesame"
OpenPage = Callable[..., ChatPage]

_FLAGS = ["--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "these tests need Chromium: tools/install_chromium.sh"
    expect.set_options(timeout=TIMEOUT_MS)
    flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else _FLAGS
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The built-in model; takes pictures."""
    with serving("tiny", log=tmp_path_factory.mktemp("tiny") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Wants an API key."""
    with serving("tiny", log=tmp_path_factory.mktemp("locked") / "log", key=KEY) as server:
        yield server


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A text-only model of random weights, which goes on until it is cut or stopped: it knows no
    token that ends an answer, and is large enough to take many seconds to its limit."""
    folder = tmp_path_factory.mktemp("talkative")
    text = replace(SHAPES["text"].text, hidden=384, heads=6, kv_heads=2, intermediate=1024)
    model = make_checkpoint(folder / "model", replace(SHAPES["text"], text=text))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        config = json.loads((model / name).read_text())
        kept = {key: value for key, value in config.items() if not key.startswith("eos_token")}
        (model / name).write_text(json.dumps(kept))
    flags = ("--served-model-name", "talkative", "--max-model-len", "8000")
    with serving(model, *flags, log=folder / "log") as server:
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Makes pages of fresh contexts; in the end none of them may have done what it must not."""
    opened: list[ChatPage] = []

    def open_page(server: Server, **options: Any) -> ChatPage:
        page = ChatPage(browser.new_context(**options), server.url)
        opened.append(page)
        return page

    yield open_page
    problems = [problem for page in opened for problem in page.problems]
    for page in opened:
        page.page.context.close()
    assert problems == []


@pytest.fixture
def examples() -> Path:
    return Path(__file__).parents[2] / "examples"
