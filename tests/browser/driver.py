"""The chat page as a person uses it, and whatever it does that it must not."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request, expect

TIMEOUT_MS = 30_000

_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`csp: ${event.violatedDirective} ${event.blockedURI}`));
"""
_TRANSFER_OF = """(files) => {
  const transfer = new DataTransfer();
  for (const { name, type, base64 } of files) {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type }));
  }
  return transfer;
}"""
_PASTE = """(transfer) => document.activeElement.dispatchEvent(
  new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }))"""


class ChatPage:
    """`problems` gathers console errors, violated policies, exceptions and foreign requests."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.problems: list[str] = []
        self.requests: list[Request] = []
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(_REPORT_VIOLATIONS)
        context.on("request", self._note_request)
        self.page: Page = context.new_page()
        self.page.on("console", self._note_console)
        # From the start: turned on with the first key press, it may miss the dialog.
        self.page.on("filechooser", lambda _: None)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))

    def open(self) -> ChatPage:
        self.page.goto(self.url + "/")
        return self

    def open_connected(self) -> ChatPage:
        self.open()
        expect(self.by_id("model-summary")).to_contain_text("text")
        return self

    def by_id(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    # what a person does

    def attach(self, *pictures: Path) -> None:
        before = self.thumbnails.count()
        self.by_id("file-input").set_input_files(list(pictures))
        expect(self.thumbnails).to_have_count(before + len(pictures))

    def set(self, **settings: str) -> None:
        """Through the drawer."""
        self.page.get_by_role("button", name="Settings").click()
        for name, value in settings.items():
            self.page.locator(f"#settings [name={name}]").fill(value)
        self.page.get_by_role("button", name="Close settings").click()

    def send(self, text: str) -> None:
        self.by_id("question").fill(text)
        self.by_id("question").press("Enter")

    def ask(self, text: str) -> str:
        """Sends, waits for the end of the answer and returns its text."""
        number = self.answers.count()
        self.send(text)
        return self.finished(number)

    def finished(self, number: int = -1) -> str:
        answer = self.answers.nth(number)
        expect(answer).to_be_visible()
        expect(answer).not_to_have_attribute("aria-busy", "true")
        expect(self.by_id("send")).to_be_visible()
        return answer.locator(".text").inner_text()

    def drop(self, files: Sequence[Path], selector: str = "main") -> None:
        transfer = self._transfer(files)
        self.page.dispatch_event(selector, "dragover", {"dataTransfer": transfer})
        self.page.dispatch_event(selector, "drop", {"dataTransfer": transfer})

    def paste(self, files: Sequence[Path]) -> None:
        self.page.evaluate(_PASTE, self._transfer(files))

    # what is seen

    @property
    def thumbnails(self) -> Locator:
        return self.page.locator("#thumbnails li")

    @property
    def answers(self) -> Locator:
        return self.page.locator("#transcript .answer")

    @property
    def questions(self) -> Locator:
        return self.page.locator("#transcript .question")

    @property
    def errors(self) -> Locator:
        return self.page.locator("#transcript .error")

    def facts(self, number: int = -1) -> list[str]:
        return self.answers.nth(number).locator(".fact").all_inner_texts()

    # what it sent

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The bodies of the completions that were asked for."""
        asked = [r for r in self.requests if r.url.endswith("/v1/chat/completions")]
        return [json.loads(r.post_data or "") for r in asked]

    def forgive(self, *texts: str) -> None:
        """Takes out the console's lines that a test provoked; each must be there."""
        for text in texts:
            found = [problem for problem in self.problems if text in problem]
            assert found, (text, self.problems)
            self.problems = [problem for problem in self.problems if problem not in found]

    def _transfer(self, files: Sequence[Path]) -> Any:
        described = [
            {
                "name": file.name,
                "type": f"image/{file.suffix[1:]}",
                "base64": base64.b64encode(file.read_bytes()).decode(),
            }
            for file in files
        ]
        return self.page.evaluate_handle(_TRANSFER_OF, described)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request)
        if not request.url.startswith((self.url + "/", "blob:" + self.url)):
            self.problems.append(f"foreign request: {request.url[:200]}")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")
