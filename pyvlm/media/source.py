"""Where a picture comes from, read from a URL exactly once.

What is fetched is built from the parts found here (scheme, host, port, target), never from the
text again, so no second parser can see another host in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes, urljoin

from pyvlm.errors import PyvlmError
from pyvlm.media.addresses import IpAddress, parse_host

MAX_URL_LENGTH = 8_192  # of http, https and file URLs

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):", re.ASCII)
_AUTHORITY = re.compile(r"//([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.ASCII)
_PORT = re.compile(r":([0-9]{1,5})", re.ASCII)
# Read differently by different parsers, or (surrogates) not text at all.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data: URL, not decoded yet."""

    url: str


@dataclass(frozen=True, slots=True)
class HttpSource:
    """host is a lower-case name or an address; target is ASCII: path and query."""

    scheme: str
    host: str | IpAddress
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As the Host header wants it."""
        host = str(self.host)
        bracketed = f"[{host}]" if ":" in host else host
        is_default = self.port == _DEFAULT_PORTS[self.scheme]
        return bracketed if is_default else f"{bracketed}:{self.port}"


@dataclass(frozen=True, slots=True)
class FileSource:
    """An absolute path without `..`, bytes as the URL gave them; not looked at yet."""

    path: bytes


ImageSource = DataSource | HttpSource | FileSource


def fetch_failed(index: int, reason: str) -> PyvlmError:
    return PyvlmError(
        f"image {index}: {reason}", code="image_fetch_failed", param=f"images[{index}]"
    )


def parse_image_source(url: str, index: int = 0) -> ImageSource:
    """The source that `url` names. Nothing is looked up, opened or decoded."""
    scheme = _SCHEME.match(url[:64])
    if scheme is None:
        raise fetch_failed(index, "the URL has no scheme; data:, http: and https: are known")
    name = scheme[1].lower()
    if name == "data":
        return DataSource(url)
    if name not in ("http", "https", "file"):
        raise _refused(index, f"data:, http:, https: and file: URLs are taken, saw {name}:")
    if len(url) > MAX_URL_LENGTH:
        raise _refused(index, f"a URL has at most {MAX_URL_LENGTH} characters, saw {len(url)}")
    if _UNSAFE.search(url):
        raise _refused(index, "the URL has a backslash, a control character or half a character")
    rest = _AUTHORITY.fullmatch(url, scheme.end())
    if rest is None:
        raise fetch_failed(index, "the URL has no // after its scheme")
    authority, path, query = rest[1], rest[2], rest[3] or ""
    try:
        if name == "file":
            return _file_source(authority, path)
        return _http_source(name, authority, (path or "/") + query)
    except ValueError as error:
        raise _refused(index, str(error)) from None


def redirect_source(source: HttpSource, location: bytes, index: int) -> HttpSource:
    """Where a redirect leads; only to http and https, and never from https back to http."""
    try:
        text = location.decode("utf-8")
    except UnicodeDecodeError:
        raise fetch_failed(index, "the server redirects to a URL that is not text") from None
    if _UNSAFE.search(text) or len(text) > MAX_URL_LENGTH:
        raise _refused(index, "the server redirects to a malformed URL")
    base = f"{source.scheme}://{source.authority}{source.target}"
    try:
        absolute = text if _SCHEME.match(text) else urljoin(base, text)
        target = parse_image_source(absolute, index)
    except ValueError:  # urljoin's, about brackets
        raise _refused(index, "the server redirects to a malformed URL") from None
    if not isinstance(target, HttpSource):
        raise _refused(index, "redirects may lead to http: and https: only, saw another scheme")
    if source.scheme == "https" and target.scheme == "http":
        raise _refused(index, "a redirect leads from https to http")
    return target


def _http_source(scheme: str, authority: str, target: str) -> HttpSource:
    if "@" in authority:
        raise ValueError("the URL has credentials")
    end = authority.find("]") + 1 or authority.find(":")
    host, rest = (authority, "") if end < 0 else (authority[:end], authority[end:])
    port = _PORT.fullmatch(rest)
    if rest not in ("", ":") and port is None:
        raise ValueError("the URL has a malformed host or port")
    number = int(port[1]) if port else _DEFAULT_PORTS[scheme]
    return HttpSource(scheme, parse_host(host), number, quote(target, safe=_TARGET))


def _file_source(authority: str, path: str) -> FileSource:
    if authority.lower() not in ("", "localhost"):
        raise ValueError("a file: URL names another host")
    raw = unquote_to_bytes(path)
    if not raw.startswith(b"/") or b"\0" in raw:
        raise ValueError("a file: URL needs an absolute path")
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ValueError("the path of a file: URL has ..")
    return FileSource(b"/" + b"/".join(parts))


# What stays as it is in a request target; all else is percent-encoded UTF-8.
_TARGET = "%/?:@!$&'()*+,;=-._~[]|"


def _refused(index: int, reason: str) -> PyvlmError:
    return PyvlmError(
        f"image {index}: {reason}", code="media_policy_violation", param=f"images[{index}]"
    )
