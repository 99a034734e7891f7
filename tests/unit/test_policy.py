from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import pytest

from pyvlm.errors import ERROR_CODES, PyvlmError
from pyvlm.media.header import ImageHeader
from pyvlm.media.policy import OPTIONAL_FORMATS, MediaPolicy
from pyvlm.media.policy_options import OPTIONS, add_media_arguments, policy_from_arguments


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
     {"max_image_bytes": 1.5}, {"allowed_formats": ("EPS",)}, {"max_redirects": -1},
     {"max_redirects": 21}, {"fetch_timeout_s": math.nan}, {"fetch_timeout_s": math.inf},
     {"connect_timeout_s": 0}, {"connect_timeout_s": "5"}, {"allowed_media_ports": (0,)},
     {"allowed_media_ports": (65536,)}, {"allowed_media_domains": ("https://a.example",)},
     {"allowed_media_domains": ("a.example:80",)}, {"allowed_media_domains": ("0177.0.0.1",)},
     {"allowed_media_domains": ("a.example.",)}, {"allowed_media_domains": ("",)},
     {"allowed_local_media_path": Path("/no/such/place")},
     {"allowed_local_media_path": Path("/etc/passwd")}, {"allowed_local_media_path": Path("/")},
     {"allowed_local_media_path": Path("/proc/self")}, {"allowed_local_media_path": Path("/dev")}],
)  # fmt: skip
def test_nonsense_limits_are_refused(changes) -> None:
    with pytest.raises(PyvlmError) as caught:
        MediaPolicy(**changes)
    assert caught.value.code == "invalid_parameter"
    (field,) = changes
    assert caught.value.param == ("allowed_image_formats" if field == "allowed_formats" else field)


def test_hosts_are_kept_in_one_spelling() -> None:
    policy = MediaPolicy(allowed_media_domains=("Pictures.Example", "[2606:4700:0::1111]", "*"))
    assert policy.allowed_media_domains == ("pictures.example", "2606:4700::1111", "*")


def parsed(*argv: str, **environ: str) -> MediaPolicy:
    parser = argparse.ArgumentParser()
    add_media_arguments(parser)
    variables = {"PYVLM_MEDIA_" + name: value for name, value in environ.items()}
    return policy_from_arguments(parser.parse_args(argv), variables | {"HOME": "/nowhere"})


def test_every_limit_can_be_set_by_flag_and_by_variable(tmp_path: Path) -> None:
    written = {
        "max_image_bytes": "5", "max_images": "image=6", "max_request_image_bytes": "7",
        "max_image_pixels": "8", "max_image_side": "9", "max_image_frames": "10",
        "allowed_formats": "png,tiff", "allowed_media_domains": "a.example,B.example",
        "allowed_media_ports": "80,8080", "allowed_local_media_path": str(tmp_path),
        "connect_timeout_s": "0.5", "fetch_timeout_s": "1.5", "max_redirects": "0",
    }  # fmt: skip
    expected = MediaPolicy(
        5, 6, 7, 8, 9, 10, ("PNG", "TIFF"), ("a.example", "b.example"), (80, 8080),
        tmp_path, 0.5, 1.5, 0,
    )  # fmt: skip
    assert [option.field for option in OPTIONS] == list(written)
    flags = [part for option in OPTIONS for part in (option.flag, written[option.field])]
    assert parsed(*flags) == expected
    assert parsed(**{name.upper(): text for name, text in written.items()}) == expected
    assert parsed() == MediaPolicy()


def test_a_flag_wins_over_a_variable() -> None:
    policy = parsed("--max-image-side", "3", MAX_IMAGE_SIDE="4", MAX_IMAGE_PIXELS="5")
    assert (policy.max_image_side, policy.max_image_pixels) == (3, 5)


@pytest.mark.parametrize("text", ["image=4", "4", '{"image": 4}', "image=4,audio=0,video=0"])
def test_number_of_pictures_as_other_servers_spell_it(text: str) -> None:
    assert parsed("--limit-mm-per-prompt", text).max_images == 4


@pytest.mark.parametrize(
    "text", ["image", "image=", "image=4,video=1", '{"image": "4"}', '{"image": 4', "[4]", "-4"]
)
def test_number_of_pictures_that_makes_no_sense(text: str) -> None:
    with pytest.raises(PyvlmError) as caught:
        parsed(f"--limit-mm-per-prompt={text}")
    assert caught.value.code == "invalid_parameter"


def test_lists_are_repeated_or_separated() -> None:
    for argv in (
        ["--allowed-media-domains", "a.example", "b.example"],
        ["--allowed-media-domains", "a.example,b.example"],
        ["--allowed-media-domains", "a.example", "--allowed-media-domains", "b.example"],
    ):
        assert parsed(*argv).allowed_media_domains == ("a.example", "b.example")


def test_variables_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PyvlmError, match="PYVLM_MEDIA_MAX_IMAGE_BYTE is no variable"):
        parsed(MAX_IMAGE_BYTE="1")
    with pytest.raises(PyvlmError, match="PYVLM_MEDIA_MAX_IMAGES takes image=N, not 'many'"):
        parsed(MAX_IMAGES="many")
    monkeypatch.setenv("PYVLM_MEDIA_MAX_REDIRECTS", "1")
    assert MediaPolicy.from_environment() == MediaPolicy(max_redirects=1)


DOCUMENT = (Path(__file__).parents[2] / "docs/media.md").read_text()


def rows(header: str) -> list[list[str]]:
    """Cells of the table in docs/media.md that starts with this header."""
    table = DOCUMENT.partition(f"| {header} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def test_documented_limits_are_the_policy_s() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("limit")}
    policy = dataclasses.asdict(MediaPolicy())
    assert documented == {name: shown(value) for name, value in policy.items()}
    for name in OPTIONAL_FORMATS:
        assert f"{name} is decoded if it is allowed" in DOCUMENT


def test_documented_flags_are_those_of_the_command_line() -> None:
    documented = {row[0].strip("`"): row[2].strip("`") for row in rows("limit")}
    assert documented == {option.field: option.flag for option in OPTIONS}
    assert list(documented) == [field.name for field in dataclasses.fields(MediaPolicy)]


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
