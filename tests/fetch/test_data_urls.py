"""Case 18 of the media cases: data URLs in every spelling."""

from __future__ import annotations

import base64
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvlm.errors import PyvlmError
from pyvlm.media import source_data
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source import DataSource, parse_image_source
from pyvlm.media.source_data import decode_data_url

POLICY = MediaPolicy()
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3 + b"\xfb\xff\xbf\xfe\xff"
BASE64 = base64.b64encode(PICTURE).decode()
URL_SAFE = base64.urlsafe_b64encode(PICTURE).decode()
assert set("+/=") <= set(BASE64)


def decode(url: str, policy: MediaPolicy = POLICY) -> bytes:
    source = parse_image_source(url, 4)
    assert isinstance(source, DataSource)
    return decode_data_url(source.url, policy, 4)


def error_of(url: str, policy: MediaPolicy = POLICY) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        decode(url, policy)
    assert caught.value.param == "images[4]"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def lines(text: str, end: str) -> str:
    return end.join(text[i : i + 76] for i in range(0, len(text), 76)) + end


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"data:;base64,{BASE64}",
        f"data:image/png;charset=utf-8;base64,{BASE64}",
        f"data:image/png;name=x.png;base64,{BASE64}",
        f"data:image/png;base64;charset=utf-8,{BASE64}",
        f"data:image/png; base64 ,{BASE64}",
        f"DATA:IMAGE/PNG;BASE64,{BASE64}",
        f"dAtA:image/png;Base64,{BASE64}",
        f"data:image/jpeg;base64,{BASE64}",  # the bytes decide
        f"data:text/plain;base64,{BASE64}",
        f"data:image/png;base64,{URL_SAFE}",
        f"data:image/png;base64,{BASE64.rstrip('=')}",
        f"data:image/png;base64,{URL_SAFE.rstrip('=')}",
        f"data:image/png;base64,{lines(BASE64, chr(10))}",
        f"data:image/png;base64,{lines(BASE64, chr(13) + chr(10))}",
        f"data:image/png;base64,{lines(BASE64, ' ')}",
        f"data:image/png;base64, \t{BASE64}",
        f"data:image/png;base64,{lines(BASE64, '%0D%0A')}",
        f"data:image/png;base64,{lines(BASE64, '%0a')}",
        "data:image/png;base64,"
        + BASE64.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        "data:image/png;base64,"
        + BASE64.replace("+", "%2b").replace("/", "%2f").replace("=", "%3d"),
    ],
)
def test_case_18_accepted(url: str) -> None:
    assert decode(url) == PICTURE


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"data:image/png,{BASE64}", "does not say ;base64"),
        (f"data:base64,{BASE64}", "does not say ;base64"),
        (f"data:image/png;base32,{BASE64}", "does not say ;base64"),
        (f"data:,{BASE64}", "does not say ;base64"),
        ("data:image/svg+xml,%3Csvg/%3E", "does not say ;base64"),
        ("data:", "has no comma"),
        (f"data:image/png;base64{BASE64}", "has no comma"),
        (f"data:image/png;{'x' * 2000};base64,{BASE64}", "has no comma in its first 1024"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,  \n%20", "is empty"),
        ("data:image/png;base64,====", "is empty"),
        ("data:image/png;base64,AA==AAAA", "has padding in its middle"),
        ("data:image/png;base64,=AAA", "has padding in its middle"),
        ("data:image/png;base64,AAAAA", "has the wrong length"),
        ("data:image/png;base64,AAAAA===", "has the wrong length"),
        ("data:image/png;base64,AAA!", "is not base64"),
        ("data:image/png;base64,{}", "is not base64"),
        ("data:image/png;base64,AA,AAAA", "is not base64"),
        ("data:image/png;base64,AAA\0", "is not base64"),
        ("data:image/png;base64,AAAé", "not ASCII"),
        ("data:image/png;base64,AAA\ud800", "not ASCII"),
        ("data:image/png;base64,%41AAA", "has an escape"),
        ("data:image/png;base64,AAA%", "has an escape"),
        ("data:image/png;base64,data:image/png;base64,AAAA", "is not base64"),
    ],
)
def test_case_18_refused_with_the_reason(url: str, reason: str) -> None:
    error = error_of(url)
    assert error.code == "image_decode_failed"
    assert error.message.startswith("image 4: the data URL's payload ")
    assert reason in error.message


@pytest.mark.parametrize("blanks", ["", "\n", "%0A"])
def test_case_18_size_is_exact_at_the_limit(blanks: str) -> None:
    policy = MediaPolicy(max_image_bytes=1000)
    for size in (998, 999, 1000):
        text = lines(base64.b64encode(bytes(size)).decode(), blanks)
        assert len(decode(f"data:image/png;base64,{text}", policy)) == size
    for size in (1001, 1002, 1003, 5000):
        for text in (base64.b64encode(bytes(size)).decode(), "A" * -(-size * 4 // 3)):
            error = error_of(f"data:image/png;base64,{lines(text, blanks)}", policy)
            assert error.code == "media_policy_violation"
            assert "max_image_bytes is 1000, saw " in error.message


@pytest.mark.parametrize("part", ["A", "A\n", "%2B", "%41"])
def test_case_18_size_is_judged_before_anything_is_copied(part: str) -> None:
    url = "data:image/png;base64," + "A" * (32 << 20) + part * 1000
    tracemalloc.start()
    try:
        error = error_of(url)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.code == "media_policy_violation"
    assert peak < 1 << 20


def test_escapes_do_not_multiply_memory() -> None:
    url = "data:image/png;base64," + "%2B" * (4 << 20)
    tracemalloc.start()
    try:
        assert len(decode(url)) == 3 << 20
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(url)


@given(st.binary(min_size=1, max_size=200), st.randoms(use_true_random=False))
def test_any_bytes_in_any_spelling(data: bytes, random) -> None:
    encode = random.choice([base64.b64encode, base64.urlsafe_b64encode])
    text = encode(data).decode()
    if random.random() < 0.5:
        text = text.rstrip("=")
    escapes = {"+": "%2B", "/": "%2F", "=": "%3D", "-": "%2D", "_": "%5F"}
    spelled = ""
    for letter in text:
        spelled += escapes.get(letter, letter) if random.random() < 0.3 else letter
        spelled += random.choice(["", "", "", " ", "\n", "%20", "\r\n"])
    assert decode(f"data:image/png;base64,{spelled}") == data


@given(st.text(max_size=60))
def test_any_text_is_bytes_or_a_typed_error(text: str) -> None:
    for url in (f"data:{text}", f"data:;base64,{text}"):
        try:
            decode(url)
        except PyvlmError as error:
            assert error.code == "image_decode_failed"  # noqa: PT017


@pytest.mark.parametrize("shift", range(8))
def test_pieces_fit_together_wherever_they_end(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an escape across each possible end of a piece, and blanks of any number before it."""
    monkeypatch.setattr(source_data, "_PIECE", 16)
    spelled = BASE64.replace("+", "%2B").replace("/", "%2F").replace("A", "%0AA")
    assert decode(f"data:image/png;base64,{' ' * shift}{spelled}") == PICTURE
    for broken in (spelled + "%2", spelled[:40] + "%41" + spelled[40:]):
        error_of(f"data:image/png;base64,{' ' * shift}{broken}")


def test_no_call_takes_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a call holds the GIL, so nobody else is served meanwhile."""
    sizes = []
    real = source_data.binascii.a2b_base64

    def spy(digits: bytes, **options: bool) -> bytes:
        sizes.append(len(digits))
        return real(digits, **options)

    monkeypatch.setattr(source_data.binascii, "a2b_base64", spy)
    picture = PICTURE * 2000
    assert decode("data:;base64," + base64.b64encode(picture).decode()) == picture
    assert len(sizes) > 5
    assert max(sizes) <= source_data._PIECE
