"""What the system refuses while a model is read ends as a typed error that names the file."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvlm import build as build_module
from pyvlm import files
from pyvlm.build import prepare_bundle, resolve_model
from pyvlm.bundle import is_bundle
from pyvlm.cache import Cache
from pyvlm.cli.main import main
from pyvlm.errors import PyvlmError
from pyvlm.frontend import load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.transform import ImageTransform, transform_from_config
from pyvlm.models.parse import parse_config, read_config
from pyvlm.weights.checkpoint import Checkpoint, open_checkpoint
from pyvlm.weights.safetensors_source import SafetensorsSource
from tests.unit.prompting import hf_tokenizer
from tests.unit.stored import write_llama
from tests.unit.test_config import SMOLVLM


def refusing(name: str, number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, but an OSError without a file name for paths that end in `name`."""

    def call(path: Path, *args: Any, **options: Any) -> Any:
        if Path(path).name == name:
            raise OSError(number, os.strerror(number))
        return real(path, *args, **options)

    return call


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENAMETOOLONG])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("read_bytes", "config.json"),
        ("read_bytes", "tokenizer.json"),
        ("stat", "tokenizer_config.json"),
        ("is_file", "model.safetensors.index.json"),
        ("open", "model.safetensors"),
    ],
)
def test_checkpoint_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str, number: int
) -> None:
    model = write_llama(tmp_path / "model")
    for side in ("tokenizer.json", "tokenizer_config.json"):
        (model / side).write_text("{}")
    monkeypatch.setattr(Path, method, refusing(name, number, getattr(Path, method)))
    with pytest.raises(PyvlmError, match=name) as info:
        open_checkpoint(model)
    assert info.value.code == "model_invalid"
    assert info.value.message == f"cannot read {model / name}: {os.strerror(number)}"


@pytest.mark.parametrize("stage", ["digest", "weights"])
def test_weights_that_fail_while_building_are_no_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    model = write_llama(tmp_path / "model")
    monkeypatch.setattr(build_module, "compile_module", lambda *_, **__: b"program")
    refuse = refusing("model.safetensors", errno.EIO, np.memmap)
    if stage == "weights":
        monkeypatch.setattr(np, "memmap", refuse)
    else:
        monkeypatch.setattr(
            files.hashlib, "file_digest", lambda *_: refuse(model / "model.safetensors")
        )
    with pytest.raises(PyvlmError, match=r"cannot read .*model\.safetensors: Input") as info:
        prepare_bundle(model, cache=Cache(tmp_path / "cache"))
    assert info.value.code == "model_invalid"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG])
def test_model_path_that_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(Path, "exists", refusing("m", number, Path.exists))
    for look in (resolve_model, open_checkpoint):
        with pytest.raises(PyvlmError, match=os.strerror(number)) as info:
            look(tmp_path / "m")
        assert info.value.code == "model_not_found"
    monkeypatch.setattr(Path, "is_file", refusing("manifest.json", number, Path.is_file))
    with pytest.raises(PyvlmError, match=r"manifest\.json"):
        is_bundle(tmp_path)


def test_the_command_line_reports_a_name_that_is_too_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "--prompt", "x", "--model", "m" * 5000]) == 3
    err = capsys.readouterr().err
    assert err.endswith("[model_not_found]\n")
    assert "File name too long" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chat_template.jinja", b"\xff\xfe", "is not UTF-8"),
        ("tokenizer_config.json", b"\xff", "is not valid JSON"),
        ("generation_config.json", b"[" * 100_000, "is not valid JSON"),
        ("special_tokens_map.json", b"[]", "does not hold a JSON object"),
    ],
)
def test_side_files_with_other_content(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    model = side_files(tmp_path)
    (model / name).write_bytes(content)
    with pytest.raises(PyvlmError, match=f"{name} {words}") as info:
        load_frontend(model, parse_config(read_config(model)), MediaPolicy())
    assert info.value.code == "model_invalid"


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_side_files_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = side_files(tmp_path)
    config = parse_config(read_config(model))
    (model / name).write_text("{}")
    monkeypatch.setattr(Path, "read_bytes", refusing(name, errno.EACCES, Path.read_bytes))
    with pytest.raises(PyvlmError, match=f"{name}: Permission denied") as info:
        load_frontend(model, config, MediaPolicy())
    assert info.value.code == "model_invalid"


def side_files(tmp_path: Path) -> Path:
    model = write_llama(tmp_path / "model")
    (model / "model.safetensors").unlink()
    hf_tokenizer().save(str(model / "tokenizer.json"))
    return model


def test_size_limit_and_identity(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    with pytest.raises(PyvlmError, match="larger than"):
        files.read_bytes(path, max_bytes=4)
    assert files.read_bytes(path, max_bytes=5) == b"12345"
    before = files.file_identity(path)
    shutil.copystat(path, path)
    assert files.file_identity(path) == before
    os.utime(path, ns=(1, 2))
    assert files.file_identity(path) == (str(path), 5, 2)


def test_settings_of_the_image_side_come_from_either_file() -> None:
    def transform(**found: Any) -> ImageTransform | None:
        files = {f"{name}.json": json.dumps(value).encode() for name, value in found.items()}
        source: Any = None
        return Checkpoint(Path("m"), "m", parse_config(SMOLVLM), source, files).transform()

    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "max_image_size": {"longest_edge": 512},
    }
    alone = transform(preprocessor_config=settings)
    assert alone is not None
    assert transform(processor_config={"image_processor": settings}) == alone
    with pytest.raises(PyvlmError, match=r"no preprocessor_config\.json") as info:
        transform(processor_config={})
    assert info.value.code == "model_invalid"


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 5},
        {"size": {"longest_edge": "x"}},
        {"size": {"longest_edge": 0}},
        {"max_image_size": [64]},
        {"rescale_factor": None},
        {"rescale_factor": "x"},
        {"rescale_factor": {}},
    ],
)
def test_wrong_image_settings_are_model_invalid(settings: dict[str, object]) -> None:
    config = {"max_image_size": {"longest_edge": 64}, **settings}
    with pytest.raises(PyvlmError) as caught:
        transform_from_config(config, image_size=64, patch_size=16)
    assert caught.value.code == "model_invalid"
    assert next(iter(settings)) in caught.value.message


def test_a_fifo_is_no_model(tmp_path: Path) -> None:
    fifo = tmp_path / "f.gguf"
    os.mkfifo(fifo)
    with pytest.raises(PyvlmError) as caught:
        open_checkpoint(fifo)
    assert caught.value.code == "model_not_found"


def test_index_of_shards_that_are_no_names(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(PyvlmError) as caught:
        SafetensorsSource(tmp_path)
    assert caught.value.code == "model_invalid"


@pytest.mark.parametrize("name", ["~nosuchuser/model", "a" * 5000])
def test_model_names_that_are_no_paths(name: str) -> None:
    with pytest.raises(PyvlmError) as caught:
        resolve_model(name)
    assert caught.value.code == "model_not_found"
