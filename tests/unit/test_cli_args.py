"""The command line up to the model: arguments, files, errors and exit statuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pyvlm.chat import ImagePart, TextPart
from pyvlm.cli import generate
from pyvlm.cli.main import _parser, main
from pyvlm.errors import ERROR_CODES, PyvlmError
from pyvlm.media.source_files import read_image_files


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "red.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return str(path)


def parse(*arguments: str):
    return _parser("generate").parse_args(["generate", *arguments])


def fails(capsys, code: str, *arguments: str) -> str:
    status = main(["generate", *arguments])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith(f" [{code}]\n")
    assert status == ERROR_CODES[code].exit_status != 0
    return err


def test_defaults() -> None:
    args = parse("--prompt", "hi")
    assert args.model == "tiny"
    sampling = generate._sampling(args)
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (0.0, None, ())
    assert generate._policy(args).allowed_formats == ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def test_pictures_come_first_and_keep_their_order(tmp_path: Path) -> None:
    args = parse("--image", "b", "--prompt", "which?", "--image", "a", "--system", "Be brief.")
    system, user = generate._prompt(args)
    assert args.image == ["b", "a"]
    assert (system.role, system.content) == ("system", "Be brief.")
    assert list(user.content) == [ImagePart(), ImagePart(), TextPart("which?")]
    for name, colour in (("b", 1), ("a", 2)):
        (tmp_path / name).write_bytes(bytes([colour]))
    paths = [str(tmp_path / name) for name in args.image]
    assert read_image_files(paths, generate._policy(args)) == [b"\1", b"\2"]


def test_picture_alone_is_a_prompt() -> None:
    (user,) = generate._prompt(parse("--image", "a"))
    assert list(user.content) == [ImagePart()]


def test_standard_input(monkeypatch) -> None:
    def stdin(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    stdin("What is it?\né\n".encode())
    assert generate._prompt(parse("--raw", "--prompt", "-")) == "What is it?\né"
    stdin(b"\xff")
    with pytest.raises(PyvlmError, match="not UTF-8"):
        generate._prompt(parse("--prompt", "-"))


def test_sampling_arguments_arrive() -> None:
    args = parse(
        "--prompt", "x", "--temperature", "0.7", "--top-p", "0.9", "--top-k", "5", "--min-p",
        "0.1", "--seed", "7", "--max-tokens", "3", "--stop", "a", "--stop", "b",
    )  # fmt: skip
    sampling = generate._sampling(args)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 5)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 7, 3)
    assert sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("code", "arguments", "named"),
    [
        ("empty_prompt", [], "--prompt is required"),
        ("empty_prompt", ["--prompt", ""], "empty"),
        ("empty_prompt", ["--raw"], "--prompt"),
        ("modality_unsupported", ["--prompt", "x", "--audio", "a.wav"], "audio"),
        ("modality_unsupported", ["--prompt", "x", "--video", "a.mp4"], "video"),
        ("invalid_parameter", ["--prompt", "x", "--max-tokens", "-1"], "max_tokens"),
        ("invalid_parameter", ["--prompt", "x", "--max-tokens", "many"], "--max-tokens"),
        ("invalid_parameter", ["--prompt", "x", "--temperature", "nan"], "temperature"),
        ("invalid_parameter", ["--prompt", "x", "--top-p", "0"], "top_p"),
        ("invalid_parameter", ["--prompt", "x", "--seed", "-1"], "seed"),
        ("invalid_parameter", ["--prompt", "x", "--stop", ""], "stop string"),
        ("invalid_parameter", ["--prompt", "x", "--threads", "-2"], "--threads"),
        ("invalid_parameter", ["--prompt", "x", "--no-such-flag"], "--no-such-flag"),
        ("invalid_parameter", ["--raw", "--prompt", "x", "--system", "y"], "--system"),
        ("invalid_parameter", ["--prompt", "x", "--allowed-image-formats", "EPS"], "EPS"),
        ("image_fetch_failed", ["--prompt", "x", "--image", "/no/such.png"], "image 0: /no/such"),
        ("image_fetch_failed", ["--prompt", "x", "--image", "/dev/zero"], "no regular file"),
        ("image_fetch_failed", ["--prompt", "x", "--image", "/"], "no regular file"),
        ("model_not_found", ["--prompt", "x", "--model", "/no/such/model"], "/no/such/model"),
    ],
)  # fmt: skip
def test_errors_have_a_code_and_an_exit_status(capsys, code, arguments, named) -> None:
    assert named in fails(capsys, code, *arguments)


def test_fifo_does_not_block(capsys, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fails(capsys, "image_fetch_failed", "--prompt", "x", "--image", str(tmp_path / "pipe"))


def test_limits_count_before_anything_is_read(capsys, tmp_path: Path, picture: str) -> None:
    many = [argument for _ in range(17) for argument in ("--image", picture)]
    assert "saw 17" in fails(capsys, "media_policy_violation", "--prompt", "x", *many)
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    error = fails(capsys, "media_policy_violation", "--prompt", "x", "--image", str(huge))
    assert f"saw {1 << 40} bytes" in error


def test_json_errors(capsys) -> None:
    status = main(["generate", "--json", "--prompt", "x", "--audio", "a"])
    out, err = capsys.readouterr()
    body = json.loads(out)["error"]
    assert (body["code"], body["type"]) == ("modality_unsupported", "invalid_request_error")
    assert body["message"] in err
    assert status == 2


def test_interrupt_is_130(monkeypatch, capsys) -> None:
    def interrupted(_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "run", interrupted)
    assert main(["generate", "--prompt", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_and_version(arguments, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "pyvlm" in capsys.readouterr().out


def test_no_command(capsys) -> None:
    assert main([]) == 2
    assert "[invalid_parameter]" in capsys.readouterr().err


def test_start_is_light() -> None:
    code = (
        "import sys; from pyvlm.cli.main import _parser; _parser('generate');"
        "heavy = {'torch', 'transformers', 'fastapi', 'iree.compiler', 'gguf'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
