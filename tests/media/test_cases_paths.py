"""A sample of the cases through the library and the command line, with the embedded model."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from media_files import chunk, encode, noise, png
from PIL import Image, ImageDraw

from pyvlm import LLM, MediaPolicy, SamplingParams
from pyvlm.cli.main import main

QUESTION = "What colour is the shape?"
GREEDY = SamplingParams(max_tokens=16)

pytestmark = pytest.mark.timeout(240)


def shape(colour: str = "red", mode: str = "RGB") -> Image.Image:
    image = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(image).ellipse((40, 40, 150, 150), fill=colour)
    return image.convert(mode)


def hidden_blue() -> Image.Image:
    """A red shape; under alpha 0 everything else is blue."""
    image = Image.new("RGBA", (192, 192), (0, 0, 255, 0))
    ImageDraw.Draw(image).ellipse((40, 40, 150, 150), fill="red")
    return image


def turned() -> bytes:
    exif = Image.Exif()
    exif[274] = 6
    return encode(shape().transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


PLAIN = encode(shape(), "PNG")
HUGE = PLAIN[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 9, 8, 2, 0, 0, 0)) + PLAIN[33:]
SAME = {  # by the number of the case: other files of the same pixels
    "05 alpha": encode(hidden_blue(), "PNG"),
    "06 turned": turned(),
    "07 first of two": encode(shape(), "PNG", save_all=True, append_images=[shape("blue")]),
    "15 webp": encode(shape(), "WEBP", lossless=True),
    "15 bmp": encode(shape(), "BMP"),
}
NEAR = {  # the same answer, not the same pixels
    "01 cmyk": encode(shape(mode="CMYK"), "JPEG", quality=95),
    "03 palette": encode(shape().quantize(4), "PNG"),
    "07 gif": encode(shape(), "GIF", save_all=True, append_images=[shape("blue")]),
}
REFUSED = {
    "08 cut": (PLAIN[:400], "image_decode_failed"),
    "08 few rows": (png((64, 64), 8, 2, bytes(193 * 20)), "image_decode_failed"),
    "09 text": (b"<html>", "image_decode_failed"),
    "09 eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "image_decode_failed"),
    "10 huge": (HUGE, "media_policy_violation"),
    "11 checksum": (PLAIN[:-13] + b"\0" + PLAIN[-12:], "image_decode_failed"),
    "14 lossless": (encode(noise(9, 9), "JPEG").replace(b"\xff\xc0", b"\xff\xc3"),
                    "image_decode_failed"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYVLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def llm(cache: None) -> Iterator[LLM]:
    del cache
    with LLM("tiny") as llm:
        yield llm


def test_library_answers_about_the_picture_that_a_viewer_sees(llm: LLM) -> None:
    files = [PLAIN, *SAME.values(), *NEAR.values()]
    outputs = llm.chat([QUESTION] * len(files), GREEDY, images=[[data] for data in files])
    assert [output.error for output in outputs] == [None] * len(files)
    assert "red" in outputs[0].text.lower()
    for name, output in zip([*SAME, *NEAR], outputs[1:], strict=True):
        assert output.text == outputs[0].text, name


def test_library_refuses_each_bad_picture_and_answers_the_good_one_after_it(llm: LLM) -> None:
    files = [data for bad, _ in REFUSED.values() for data in (bad, PLAIN)]
    outputs = llm.chat([QUESTION] * len(files), GREEDY, images=[[data] for data in files])
    for (name, (_, code)), bad, good in zip(
        REFUSED.items(), outputs[::2], outputs[1::2], strict=True
    ):
        assert bad.error is not None, name
        assert (bad.error.code, bad.error.param) == (code, "images[0]"), name
        assert good.error is None, name
        assert "red" in good.text.lower(), name


def test_library_refuses_tiff_unless_it_is_allowed(llm: LLM) -> None:
    data = encode(shape(), "TIFF")
    (refused,) = llm.chat([QUESTION], GREEDY, images=[[data]])
    assert refused.error is not None
    assert "allowed_formats" in refused.error.message
    with LLM("tiny", policy=MediaPolicy(allowed_formats=("TIFF",))) as other:
        (output,) = other.chat([QUESTION], GREEDY, images=[[data]])
    assert "red" in output.text.lower()


def test_case_12_odd_sizes_through_the_library(llm: LLM) -> None:
    files = [encode(noise(*size), "PNG") for size in ((1, 1), (1, 4000), (4000, 1), (3, 16000))]
    outputs = llm.chat([QUESTION] * len(files), GREEDY, images=[[data] for data in files])
    assert [output.error for output in outputs] == [None] * len(files)
    assert all(output.usage.image_positions > 0 for output in outputs)


@pytest.mark.parametrize("name", ["08 few rows", "09 eps", "10 huge"])
def test_command_line_refuses(name: str, tmp_path: Path, capsys) -> None:
    data, code = REFUSED[name]
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    arguments = ["generate", "--image", str(path), "--prompt", QUESTION, "--json"]
    assert main(arguments) != 0
    printed = capsys.readouterr()
    assert code in printed.out + printed.err
    assert "Traceback" not in printed.err


def test_command_line_answers(tmp_path: Path, capsys) -> None:
    path = tmp_path / "picture.html"  # the bytes decide, not the name
    path.write_bytes(SAME["05 alpha"])
    assert main(["generate", "--image", str(path), "--prompt", QUESTION, "--json"]) == 0
    assert "red" in json.loads(capsys.readouterr().out)["text"].lower()
    assert np.asarray(hidden_blue())[0, 0].tolist() == [0, 0, 255, 0]
