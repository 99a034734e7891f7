"""The page's files: public, complete, and under a policy that a browser enforces."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import OpenPage
from serving import Server, serving

pytestmark = pytest.mark.browser

STATIC = Path(__file__).parents[2] / "pyvlm" / "server" / "static"
PATHS = ["/", *(f"/static/{file.name}" for file in STATIC.iterdir() if file.suffix != ".html")]

_ATTEMPTS = {
    "connect-src": "url => fetch(url).then(() => 'went out', () => 'refused')",
    "img-src": """url => new Promise(done => {
      const image = new Image();
      image.onload = image.onerror = () => done('refused');
      image.src = url;
    })""",
    "script-src-elem": """url => new Promise(done => {
      const script = document.createElement('script');
      script.onload = () => done('went out');
      script.onerror = () => done('refused');
      try { script.src = url; } catch { done('refused'); }
      document.head.append(script);
    })""",
    "style-src-elem": """url => new Promise(done => {
      const link = document.createElement('link');
      link.rel = 'stylesheet';
      link.onload = () => done('went out');
      link.onerror = () => done('refused');
      link.href = url;
      document.head.append(link);
    })""",
}


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """Another origin, and the paths that it was asked for."""
    seen: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("directive", sorted(_ATTEMPTS))
def test_the_policy_stops_every_way_out(
    tiny: Server, open_page: OpenPage, elsewhere: tuple[str, list[str]], directive: str
) -> None:
    url, seen = elsewhere
    page = open_page(tiny).open_connected()
    assert page.page.evaluate(_ATTEMPTS[directive], f"{url}/x") == "refused"
    assert seen == []
    assert page.problems  # that the other tests have none means something
    page.problems.clear()


@pytest.mark.parametrize(
    "code",
    [
        "document.body.innerHTML = '<b>markup</b>'",
        "document.querySelector('#question').outerHTML = ''",
        "document.body.insertAdjacentHTML('beforeend', '<img>')",
        "Function('return 1')()",
    ],
)
def test_no_string_becomes_markup_or_code(tiny: Server, open_page: OpenPage, code: str) -> None:
    page = open_page(tiny).open_connected()
    # In a timer: what runs within evaluate itself is the debugger's, and may do more.
    script = f"""() => new Promise((end) => setTimeout(() => {{
      try {{ {code}; end("done"); }} catch (error) {{ end(error.name); }}
    }}))"""
    assert page.page.evaluate(script) in ("TypeError", "EvalError")
    page.problems.clear()


def test_every_file_is_public_and_carries_the_policy(locked: Server) -> None:
    stranger = Server(locked.url)
    assert stranger.fetch("/v1/models")[0] == 401
    for path in PATHS:
        status, body, headers = stranger.fetch(path)
        assert status == 200, path
        assert body, path
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        again = stranger.fetch(path, headers={"If-None-Match": headers["ETag"]})
        assert again[:2] == (304, b""), path
        assert stranger.fetch(path, method="HEAD")[:2] == (200, b""), path
    for path in ("/static/", "/static/nothing.js", "/static/../page.py", "/static/%2e%2e/page.py"):
        assert stranger.fetch(path)[0] in (401, 404), path


def test_the_files_name_no_outside_address_and_hold_nothing_inline() -> None:
    for path in STATIC.iterdir():
        text = path.read_text()
        addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path  # a name, which nothing loads
    index = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=|javascript:", index)


def test_the_page_can_be_left_out(tmp_path: Path) -> None:
    with serving("tiny", "--no-ui", log=tmp_path / "log") as server:
        assert {server.fetch(path)[0] for path in PATHS} == {404}
        assert server.fetch("/v1/models")[0] == 200
