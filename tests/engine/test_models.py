"""What a model can take decides what is served: one predicate, four kinds of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from pyvlm import LLM, BuildOptions, PyvlmError, SamplingParams
from pyvlm.request import Embeddings
from tests.engine.bench import is_clean, picture
from tools.make_checkpoint import SHAPES, make_checkpoint

pytestmark = pytest.mark.timeout(280)

SMALL = BuildOptions(max_model_len=128, max_num_seqs=2)
FEW = SamplingParams(max_tokens=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def text_only(folder: Path) -> Iterator[LLM]:
    with LLM(make_checkpoint(folder / "text", SHAPES["text"]), build=SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def unknown_family(folder: Path) -> Iterator[LLM]:
    """A vision-language model of a family that we do not know, around the same decoder."""
    model = make_checkpoint(folder / "unknown", SHAPES["text"])
    config = json.loads((model / "config.json").read_text())
    outer = {
        "model_type": "newvlm",
        "architectures": ["NewVlmForConditionalGeneration"],
        "text_config": config,
        "vision_config": {"model_type": "newvlm_vision", "hidden_size": 64},
        "image_token_id": 3,
    }
    (model / "config.json").write_text(json.dumps(outer))
    with LLM(model, build=SMALL) as llm:
        yield llm


def refused(llm: LLM, images: list) -> PyvlmError:
    """Through the library; what the server reports is the same object."""
    before = llm.engine.stats().native.num_submitted
    (output,) = llm.chat("What is it?", FEW, images=[images])
    assert output.error is not None
    assert llm.engine.stats().native.num_submitted == before
    assert not llm.engine.capabilities.supports("image")
    assert llm.engine.capabilities.report()["modalities"] == ["text"]
    return output.error


def test_a_text_model(text_only: LLM) -> None:
    (output,) = text_only.chat("Hello", FEW)
    assert output.error is None
    assert output.usage.completion_tokens > 0
    import numpy as np

    for image in (picture("red"), b"junk", Embeddings(np.zeros((4, 192), np.float32))):
        assert refused(text_only, [image]).code == "modality_unsupported"
    assert text_only.engine.stats().pool is None
    assert is_clean(text_only.engine)


def test_an_unknown_family(unknown_family: LLM) -> None:
    (output,) = unknown_family.chat("Hello", FEW)
    assert output.error is None
    for image in (picture("red"), b"junk"):
        assert refused(unknown_family, [image]).code == "model_unsupported"


def test_missing_vision_tensors(folder: Path) -> None:
    """Nothing is compiled, and the message says what is missing."""
    model = make_checkpoint(folder / "torn", SHAPES["smolvlm-type"])
    tensors = load_file(model / "model.safetensors")
    gone = [name for name in tensors if ".vision_model.encoder.layers.1." in name]
    assert gone
    save_file(
        {n: t for n, t in tensors.items() if n not in gone},
        model / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(PyvlmError) as caught:
        LLM(model, build=SMALL)
    assert caught.value.code == "missing_tensor"
    assert any(name in caught.value.message for name in gone)
