"""Any URL and any Location is a source or a typed error, and a source says one thing only."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from pyvlm.errors import PyvlmError
from pyvlm.media.source import HttpSource, parse_image_source, redirect_source

SCHEMES = st.sampled_from(["http://", "https://", "file://", "http:", "HTTP://", "ftp://", ""])
PIECES = st.lists(
    st.sampled_from(
        ["a.example", "127.1", "[::1]", ":80", ":", "@", "/", "//", "\\", "?", "#", "%2f", "..",
         "%", "\u3002", "\ud800", "ü", " ", "\t", "\n", "\0", "[", "]", "a", "0x7f", "&", "="]
    ),
    max_size=8,
).map("".join)  # fmt: skip
URLS = st.builds(str.__add__, SCHEMES, PIECES | st.text(max_size=30))


def check(source: object) -> None:
    if not isinstance(source, HttpSource):
        return
    assert re.fullmatch(r"[!-~]+", source.target)
    assert source.target.startswith("/")
    again = urlsplit(f"{source.scheme}://{source.authority}{source.target}")
    assert (again.hostname, again.username, again.password) == (str(source.host), None, None)
    assert (again.port or {"http": 80, "https": 443}[again.scheme]) == source.port


@given(URLS)
def test_any_url(url: str) -> None:
    try:
        source = parse_image_source(url, 3)
    except PyvlmError as error:
        codes = ("media_policy_violation", "image_fetch_failed")
        assert (error.code in codes, error.param) == (True, "images[3]")  # noqa: PT017
    else:
        check(source)


@given(URLS.map(lambda url: url.encode("utf-8", "surrogatepass")) | st.binary(max_size=30))
@example(b"//[::1")
@example(b"")
def test_any_redirect(location: bytes) -> None:
    start = parse_image_source("http://a.example:8080/b/c?d", 3)
    assert isinstance(start, HttpSource)
    try:
        check(redirect_source(start, location, 3))
    except PyvlmError as error:
        assert error.param == "images[3]"  # noqa: PT017
