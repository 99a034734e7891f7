"""The pictures themselves over HTTP, by the number of their case: 1 to 17, and 45.

One server whose engine keeps encoded pictures, so that no file may be taken for another one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.media.policy import DEFAULT_FORMATS, OPTIONAL_FORMATS, MediaPolicy
from tests.media.media_files import encode, noise
from tests.server.conftest import Host, Running
from tests.server.faulty import count_of
from tests.server.picture_cases import NEAR, PLAIN, REFUSED, SAME, same_raw_bytes, shape
from tests.server.pictures import data_url, text_part

pytestmark = pytest.mark.timeout(180)
POLICY = MediaPolicy(allowed_formats=DEFAULT_FORMATS + OPTIONAL_FORMATS)


@pytest.fixture(scope="module")
def pictures(cache: None) -> Iterator[Running]:
    del cache
    options = EngineOptions(image_cache_bytes=8 << 20, check_invariants=True)
    host = Host(engine=AsyncEngine.load("tiny", options=options, policy=POLICY))
    yield host.serve(POLICY)
    host.close()


def content(*files: bytes) -> list[dict[str, object]]:
    urls = [{"type": "image_url", "image_url": {"url": data_url(data)}} for data in files]
    return [*urls, text_part()]


def draws(server: Running, *files: bytes) -> tuple[str, ...]:
    """Hot draws of fixed seeds: logits that differ in anything give other texts."""
    response = server.chat(content(*files), temperature=4.0, seed=1, max_tokens=3, n=4)
    assert response.status_code == 200, response.text
    return tuple(choice["message"]["content"] for choice in response.json()["choices"])


@pytest.mark.parametrize("case", SAME)
def test_the_pixels_that_a_viewer_sees(pictures: Running, case: str) -> None:
    first, *others = SAME[case]()
    expected = draws(pictures, first)
    assert [draws(pictures, data) == expected for data in others] == [True] * len(others)
    assert expected != draws(pictures, encode(noise(192, 160), "PNG"))


@pytest.mark.parametrize("case", NEAR)
def test_lossy_files_get_the_same_answer(pictures: Running, case: str) -> None:
    first, *others = NEAR[case]()
    expected = pictures.say(content(first))
    assert [pictures.say(content(data)) for data in others] == [expected] * len(others)
    negative = pictures.say(content(encode(shape("cyan", ground="black"), "PNG")))
    assert expected != negative


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(pictures: Running, case: str) -> None:
    """As the second of two pictures; the connection goes on, and so does the server."""
    code, files = REFUSED[case]
    for number, data in enumerate(files()):
        response = pictures.chat(content(PLAIN, data))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, code), (number, error)
        assert error["param"] == "images[1]", (number, error)
        assert error["type"] == "invalid_request_error"
    assert "red" in pictures.say(content(PLAIN)).lower()


@pytest.mark.parametrize(
    "size",
    [(1, 1), (1, 4000), (4000, 1), (3, 16000), (16000, 3), (1, 3), (3, 1), (3, 40), (40, 3)],
    ids=str,
)
def test_case_12_and_45_odd_sizes(pictures: Running, size: tuple[int, int]) -> None:
    """Width and height are the file's own, never taken for channels; as many positions as rows
    that the tiles of the checkpoint's processor give."""
    frontend = pictures.service.engine().frontend
    assert frontend.transform is not None
    assert frontend.image_prompt is not None
    grid = frontend.transform.grid(*size)
    data = encode(noise(*size), "PNG")
    response = pictures.chat(content(data), max_tokens=1)
    assert response.status_code == 200, response.text
    told = response.json()["usage"]["prompt_tokens_details"]["image_positions"]
    assert told == len(frontend.image_prompt.expand(grid))


def test_case_45_a_turned_picture_is_another_one(pictures: Running) -> None:
    image = noise(3, 40)
    turned = image.transpose(2)  # ROTATE_90
    assert draws(pictures, encode(image, "PNG")) != draws(pictures, encode(turned, "PNG"))


def test_case_15_and_16_no_file_is_taken_for_another(pictures: Running, server: Running) -> None:
    """The cache's key is the file: the same one is found, the same pixels in another one are not,
    and every answer is that of a server without a cache."""
    files = [*same_raw_bytes(), *SAME["15 other containers"]()[:3]]
    hits = count_of(pictures, "pyvlm_image_cache_hits_total")
    first = [draws(pictures, data) for data in files]
    assert first == [draws(server, data) for data in files]
    assert len(set(first[:-3])) == len(files) - 3
    found = count_of(pictures, "pyvlm_image_cache_hits_total") - hits
    assert [draws(pictures, data) for data in files] == first
    assert count_of(pictures, "pyvlm_image_cache_hits_total") - hits - found >= len(files)


@pytest.mark.parametrize(
    "raised",
    [ValueError, SyntaxError, NotImplementedError, struct.error, MemoryError, OverflowError,
     UserWarning],
)  # fmt: skip
def test_case_17_what_the_library_raises(
    pictures: Running, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        del args, options
        raise raised("secret /home/user 0x7f")

    fresh = encode(noise(32, 32, seed=hash(raised.__name__) % 1000), "PNG")
    with monkeypatch.context() as patch:
        patch.setattr("pyvlm.media.decode.Image.open", broken)
        response = pictures.chat(content(fresh))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "image_decode_failed")
    assert "secret" not in response.text
    assert pictures.chat(content(fresh), max_tokens=1).status_code == 200
