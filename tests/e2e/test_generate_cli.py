"""`pyvlm generate` with the embedded model, as a user runs it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import pyvlm

COMMAND = [sys.executable, "-m", "pyvlm.cli.main", "generate"]
IMAGE_POSITIONS = 19  # 16 rows and 3 markers


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pictures")
    paths = {}
    for name, colour in (("red", (220, 30, 30)), ("blue", (30, 60, 220))):
        image = Image.new("RGB", (192, 192), "white")
        ImageDraw.Draw(image).ellipse((40, 40, 150, 150), fill=colour)
        paths[name] = str(folder / f"{name}.png")
        image.save(paths[name])
    return paths


@pytest.fixture
def run(cache: Path):
    environment = {**os.environ, "PYVLM_CACHE_DIR": str(cache)}

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=240,
            env=environment, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def report(run):
    def report(*arguments: str, stdin: str | None = None) -> dict:
        result = run("--json", *arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return report


def test_another_picture_gives_another_right_answer(run, pictures) -> None:
    for colour in ("red", "blue"):
        result = run("--image", pictures[colour], "--prompt", "What colour is the shape?")
        assert result.returncode == 0, result.stderr
        assert colour in result.stdout.lower()
        assert result.stdout.endswith("\n")
        assert "<" not in result.stdout  # no marker, no end of turn


def test_json_has_text_reason_usage_and_timings(report, pictures) -> None:
    got = report("--image", pictures["red"], "--prompt", "What colour is the shape?")
    assert "red" in got["text"].lower()
    assert got["finish_reason"] == "stop"
    usage = got["usage"]
    assert usage["prompt_tokens_details"]["image_positions"] == IMAGE_POSITIONS
    assert 0 < usage["completion_tokens"] < 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    timings = got["timings"]
    assert min(timings[f"{stage}_s"] for stage in ("load", "preprocess", "encode", "prefill")) > 0
    if usage["completion_tokens"] > 1:
        assert timings["decode_tokens_per_s"] > 0


def test_prompt_tokens_are_logical(report, pictures) -> None:
    alone = report("--prompt", "Hello", "--max-tokens", "1")["usage"]
    picture = report("--prompt", "Hello", "--max-tokens", "1", "--image", pictures["red"])["usage"]
    both = report(
        "--prompt", "Hello", "--max-tokens", "1",
        "--image", pictures["red"], "--image", pictures["blue"],
    )["usage"]  # fmt: skip
    assert both["prompt_tokens"] == picture["prompt_tokens"] + 1
    assert both["prompt_tokens_details"]["image_positions"] == 2 * IMAGE_POSITIONS
    assert alone["prompt_tokens_details"]["image_positions"] == 0


def test_placeholders_in_text_stay_text(report, pictures) -> None:
    prompt = "What is <image> <|im_end|><fake_token_around_image>?"
    for images in ([], ["--image", pictures["red"]]):
        usage = report("--prompt", prompt, "--max-tokens", "1", *images)["usage"]
        positions = usage["prompt_tokens_details"]["image_positions"]
        assert positions == IMAGE_POSITIONS * (len(images) // 2)


def test_standard_input_and_system(report, pictures) -> None:
    question = "What colour is the shape?"
    typed = report("--image", pictures["blue"], "--prompt", question)
    piped = report("--image", pictures["blue"], "--prompt", "-", stdin=question + "\n")
    assert typed["text"] == piped["text"]
    longer = report("--prompt", question, "--system", "Be brief.", "--max-tokens", "1")
    assert longer["usage"]["prompt_tokens"] > 0


def test_raw_prompt_equals_the_chat_that_spells_it(report, pictures) -> None:
    chat = report("--image", pictures["red"], "--prompt", "What colour is the shape?")
    raw = "<|im_start|>User:<image>What colour is the shape?<end_of_utterance>\nAssistant:"
    got = report("--raw", "--prompt", raw, "--image", pictures["red"])
    assert (got["text"], got["usage"]) == (chat["text"], chat["usage"])


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_max_tokens(report, pictures, limit: int) -> None:
    got = report(
        "--image", pictures["red"], "--prompt", "What colour is the shape?",
        "--max-tokens", str(limit),
    )  # fmt: skip
    assert got["usage"]["completion_tokens"] <= limit
    if limit == 0:
        assert (got["text"], got["finish_reason"]) == ("", "length")


def test_stop_string_is_never_shown(report, pictures) -> None:
    arguments = ["--image", pictures["red"], "--prompt", "What colour is the shape?"]
    whole = report(*arguments)["text"]
    stop = whole.strip()[1:3]
    got = report(*arguments, "--stop", stop)
    assert got["finish_reason"] == "stop"
    assert got["text"] == whole[: whole.index(stop)]
    assert got["usage"]["completion_tokens"] >= 1


def test_a_seed_repeats(report, pictures) -> None:
    arguments = [
        "--image", pictures["red"], "--prompt", "What is this?", "--temperature", "1.5",
        "--seed", "11", "--max-tokens", "12",
    ]  # fmt: skip
    assert report(*arguments)["text"] == report(*arguments)["text"]


def test_errors_after_the_model_is_known(run, pictures, tmp_path: Path) -> None:
    text = tmp_path / "page.png"
    text.write_text("<!DOCTYPE html><html></html>")
    red = pictures["red"]
    cases = [
        ("image_decode_failed", 2, ["--prompt", "x", "--image", red, "--image", str(text)]),
        ("context_overflow", 2, ["--prompt", "word " * 5000]),
        ("context_overflow", 2, ["--prompt", "x", "--max-tokens", "1000000"]),
        ("placeholder_mismatch", 2, ["--raw", "--prompt", "a <image> b"]),
        ("placeholder_mismatch", 2, ["--raw", "--prompt", "a <image> b", *["--image", red] * 2]),
        ("model_not_found", 3, ["--prompt", "x", "--model", str(tmp_path)]),
    ]
    for code, status, arguments in cases:
        result = run(*arguments)
        assert result.returncode == status, (code, result.stderr)
        assert result.stdout == ""
        assert result.stderr.endswith(f" [{code}]\n")
        assert "Traceback" not in result.stderr
    for code, _status, arguments in cases[:1]:
        body = json.loads(run("--json", *arguments).stdout)["error"]
        assert (body["code"], body["param"]) == (code, "images[1]")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model without a token that ends a turn: it writes until the capacity."""
    model = tmp_path_factory.mktemp("model") / "endless"
    shutil.copytree(Path(pyvlm.__file__).parent / "assets/tiny", model)
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        settings = json.loads((model / name).read_text())
        kept = {k: v for k, v in settings.items() if k not in ("eos_token", "eos_token_id")}
        (model / name).write_text(json.dumps(kept))
    return model


@contextmanager
def started(cache: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Unbuffered pipes, so that what is read is all that was taken from them."""
    child = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env={**os.environ, "PYVLM_CACHE_DIR": str(cache)},
    )  # fmt: skip
    watchdog = threading.Timer(240, child.kill)  # ends any read below
    watchdog.start()
    try:
        with child:
            yield child
    finally:
        watchdog.cancel()
        child.kill()


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_compiling(endless: Path, tmp_path: Path) -> None:
    with started(tmp_path, "--model", str(endless), "--prompt", "x") as child:
        assert child.stderr.readline() == b"compiling ...\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert (out, err) == (b"", b"\ninterrupted\n")
    assert not list((tmp_path / "bundles").iterdir())
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_decoding(endless: Path, cache: Path) -> None:
    """The pipe holds less than the answer, so the answer cannot end before the signal."""
    arguments = ["--model", str(endless), "--prompt", "x", "--max-model-len", "2048"]
    with started(cache, *arguments, "--temperature", "100", "--seed", "1") as child:
        assert fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, 4096) == 4096
        assert child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.endswith(b"\ninterrupted\n")
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    assert len(out) <= 2 * 4096


def test_a_closed_pipe_is_no_traceback(cache: Path, pictures) -> None:
    child = subprocess.Popen(
        [*COMMAND, "--image", pictures["red"], "--prompt", "What colour is the shape?"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYVLM_CACHE_DIR": str(cache)},
    )
    with child:
        child.stdout.close()
        err = child.stderr.read()
        child.wait(60)
    assert child.returncode == 1
    assert "Traceback" not in err
    assert "Exception ignored" not in err
