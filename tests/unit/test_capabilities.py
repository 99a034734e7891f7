"""One object says what a model can do, and refuses the rest; a checkpoint's side files load or
fail with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyvlm.capabilities import capabilities
from pyvlm.chat import ImagePart, Message, TextPart
from pyvlm.errors import PyvlmError
from pyvlm.frontend import load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.models.config import DecoderConfig, ModelConfig, VisionConfig
from tests.unit.prompting import CHATML, SMOLVLM, image_token_id, tokenizer

DECODER = DecoderConfig(64, 128, 2, 2, 1, 32, 600)
VISION = VisionConfig(48, 96, 2, 2, 64, 16, 2)
TEXT = ModelConfig("llama", DECODER)
VLM = ModelConfig("idefics3", DECODER, VISION, image_token_id=image_token_id())
UNKNOWN_VLM = ModelConfig("llama", DECODER, text_only_reason="the vision side of 'x' is not known")
PREPROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "size": {"longest_edge": 256},
    "max_image_size": {"longest_edge": 64},
}


def failure(call, *args) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        call(*args)
    return caught.value


def of(model: ModelConfig):
    return capabilities(model, has_chat_template=True, image_formats=("PNG",))


@pytest.mark.parametrize(
    ("model", "modalities", "code"),
    [(TEXT, ("text",), "modality_unsupported"), (VLM, ("text", "image"), None),
     (UNKNOWN_VLM, ("text",), "model_unsupported")],
)  # fmt: skip
def test_report_and_refusal_are_the_same_predicate(model, modalities, code) -> None:
    able = of(model)
    assert able.report()["modalities"] == list(modalities)
    able.require("text")
    for modality in ("image", "audio", "video"):
        if able.supports(modality):
            able.require(modality)
        else:
            expected = code if modality == "image" else "modality_unsupported"
            assert failure(able.require, modality).code == expected
    assert able.supports("image") == ("image" in able.report()["modalities"])


def checkpoint(folder: Path, **files: object) -> Path:
    base: dict[str, object] = {
        "tokenizer.json": json.loads(tokenizer().hf.to_str()),
        "tokenizer_config.json": {
            "bos_token": {"content": "<|im_start|>"},
            "eos_token": "<end_of_utterance>",
        },
        "chat_template.jinja": SMOLVLM,
        "preprocessor_config.json": PREPROCESSOR,
        "processor_config.json": {"image_seq_len": 4},
        "generation_config.json": {"eos_token_id": [5, 1]},
        "config.json": {"eos_token_id": 599},
    }
    named = {name.replace("__", "."): value for name, value in files.items()}
    for name, value in {**base, **named}.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / name).write_text(text)
    return folder


def load(folder: Path, model: ModelConfig = VLM, **files: object):
    return load_frontend(checkpoint(folder, **files), model, MediaPolicy())


def test_a_vlm_loads_whole(tmp_path: Path) -> None:
    frontend = load(tmp_path)
    assert frontend.transform is not None
    assert frontend.transform.num_patches == 16
    assert frontend.image_token_id == image_token_id()
    assert frontend.capabilities.features == ("chat", "completions")
    end = tokenizer().token_id("<end_of_utterance>")
    assert frontend.stop_token_ids == (5, 1, end)  # 599 is an ordinary token: no stop
    ids = frontend.chat_ids([Message("user", [ImagePart(), TextPart("What?")])])
    assert ids.count(image_token_id()) == 1


def test_a_text_model_takes_no_image_and_needs_no_preprocessor(tmp_path: Path) -> None:
    frontend = load(tmp_path, TEXT, preprocessor_config__json=None, chat_template__jinja=CHATML)
    assert frontend.image_prompt is None
    error = failure(frontend.chat_ids, [Message("user", [ImagePart()])])
    assert error.code == "modality_unsupported"
    assert frontend.chat_ids([Message("user", "hi")])


def test_templates_are_found_where_checkpoints_keep_them(tmp_path: Path) -> None:
    for place, value in (
        ("chat_template__json", {"chat_template": SMOLVLM}),
        ("tokenizer_config__json", {"chat_template": SMOLVLM}),
        ("tokenizer_config__json", {"chat_template": [{"name": "default", "template": SMOLVLM}]}),
        ("processor_config__json", {"chat_template": SMOLVLM}),
    ):
        folder = tmp_path / f"{place}{len(json.dumps(value))}"
        folder.mkdir()
        assert load(folder, chat_template__jinja=None, **{place: value}).template is not None


def test_without_template_only_raw_prompts(tmp_path: Path) -> None:
    frontend = load(tmp_path, chat_template__jinja=None)
    assert frontend.capabilities.features == ("completions",)
    error = failure(frontend.chat_ids, [Message("user", "x")])
    assert error.code == "chat_template_failed"
    assert frontend.text_ids("a <image> b").count(image_token_id()) == 1


def test_nested_image_processor(tmp_path: Path) -> None:
    nested = {"image_seq_len": 4, "image_processor": PREPROCESSOR}
    frontend = load(tmp_path, preprocessor_config__json=None, processor_config__json=nested)
    assert frontend.transform is not None


@pytest.mark.parametrize(
    ("files", "code", "named"),
    [
        ({"preprocessor_config__json": None}, "model_invalid", "no preprocessor_config.json"),
        ({"preprocessor_config__json": "{"}, "model_invalid", "not valid JSON"),
        ({"preprocessor_config__json": "[]"}, "model_invalid", "JSON object"),
        ({"preprocessor_config__json": {"image_processor_type": "CLIPImageProcessor"}},
         "model_unsupported", "CLIPImageProcessor"),
        ({"processor_config__json": {"image_seq_len": 5}}, "model_invalid", "image_seq_len is 5"),
        ({"tokenizer__json": None}, "model_invalid", "no tokenizer.json"),
        ({"tokenizer__json": "{}"}, "model_invalid", "not a tokenizer"),
        ({"chat_template__jinja": "{% if %}"}, "model_invalid", "does not parse"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_checkpoint_is_said_at_load(
    tmp_path: Path, files: dict, code: str, named: str
) -> None:
    error = failure(lambda: load(tmp_path, **files))
    assert error.code == code
    assert named in error.message


def test_empty_conversation(tmp_path: Path) -> None:
    frontend = load(tmp_path)
    assert failure(frontend.chat_ids, [Message("user", "")]).code == "empty_prompt"
    assert failure(frontend.chat_ids, [Message("user", [])]).code == "empty_prompt"
