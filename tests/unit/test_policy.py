from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyvlm.errors import ERROR_CODES, PyvlmError
from pyvlm.media.header import ImageHeader
from pyvlm.media.policy import OPTIONAL_FORMATS, MediaPolicy


def violation(call, *args) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        call(*args)
    assert caught.value.code == "media_policy_violation"
    return caught.value


def test_defaults_are_the_documented_ones() -> None:
    policy = MediaPolicy()
    assert (policy.max_image_bytes, policy.max_request_image_bytes) == (20 << 20, 64 << 20)
    assert (policy.max_images, policy.max_image_pixels) == (16, 50_000_000)
    assert policy.max_image_side == 16_384
    assert policy.allowed_formats == ("PNG", "JPEG", "WEBP", "GIF", "BMP")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_images = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("header", "name", "limit", "seen"),
    [
        (ImageHeader("PNG", 16_385, 1), "max_image_side", 16_384, 16_385),
        (ImageHeader("PNG", 1, 16_385), "max_image_side", 16_384, 16_385),
        (ImageHeader("JPEG", 10_000, 5_001), "max_image_pixels", 50_000_000, 50_010_000),
        (ImageHeader("WEBP", 9, 9, num_frames=1001), "max_image_frames", 1000, 1001),
    ],
)
def test_header_limits_name_themselves(header, name, limit, seen) -> None:
    error = violation(MediaPolicy().check_header, header, 3)
    assert error.param == "images[3]"
    for part in (name, str(limit), str(seen), "image 3"):
        assert part in error.message


def test_header_at_each_limit_passes() -> None:
    policy = MediaPolicy()
    policy.check_header(ImageHeader("BMP", 16_384, 3_051), 0)
    policy.check_header(ImageHeader("GIF", 10_000, 5_000, num_frames=1000), 0)


def test_request_limits() -> None:
    policy = MediaPolicy()
    policy.check_request([4 << 20] * 16)
    assert "saw 17 images" in violation(policy.check_request, [1] * 17).message
    over = violation(policy.check_request, [1, (20 << 20) + 1])
    assert over.param == "images[1]"
    assert "max_image_bytes is 20971520, saw 20971521" in over.message
    total = violation(policy.check_request, [(4 << 20) + 1] * 16)
    assert total.param == "images"
    assert "max_request_image_bytes is 67108864" in total.message


def test_formats_are_an_allow_list() -> None:
    error = violation(MediaPolicy().check_header, ImageHeader("TIFF", 4, 4), 0)
    assert "saw TIFF" in error.message
    MediaPolicy(allowed_formats=("TIFF",)).check_header(ImageHeader("TIFF", 4, 4), 0)


@pytest.mark.parametrize(
    "changes",
    [{"max_images": 0}, {"max_image_side": -1}, {"max_image_pixels": True},
     {"max_image_bytes": 1.5}, {"allowed_formats": ("EPS",)}],
)  # fmt: skip
def test_nonsense_limits_are_refused(changes) -> None:
    with pytest.raises(PyvlmError) as caught:
        MediaPolicy(**changes)
    assert caught.value.code == "invalid_parameter"


DOCUMENT = (Path(__file__).parents[2] / "docs/media.md").read_text()


def rows(header: str) -> list[list[str]]:
    """Cells of the table in docs/media.md that starts with this header."""
    table = DOCUMENT.partition(f"| {header} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_documented_limits_are_the_policy_s() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("limit")}
    policy = dataclasses.asdict(MediaPolicy())
    policy["allowed_formats"] = ", ".join(policy["allowed_formats"])
    assert documented == {name: str(value) for name, value in policy.items()}
    for name in OPTIONAL_FORMATS:
        assert f"{name} is decoded if it is allowed" in DOCUMENT


def test_documented_codes_exist_with_their_status() -> None:
    found = rows("what happened")
    assert len(found) == 6
    for row in found:
        for code in row[1].split(" or "):
            assert ERROR_CODES[code.strip("`")].status == int(row[2])


def test_plugins_with_the_documented_issues_cannot_be_allowed() -> None:
    names = [row[0] for row in rows("plugin")]
    assert len(names) == 6
    for name in names:
        with pytest.raises(PyvlmError, match=name) as caught:
            MediaPolicy(allowed_formats=("PNG", name))
        assert caught.value.code == "invalid_parameter"
