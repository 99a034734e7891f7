"""Other templates, and the language model alone. Media cases 28 and 29."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from pyvlm.engine import AsyncEngine
from tests.server.conftest import Host, Running
from tests.server.engines import OPTIONS, engine_over, tiny_runner, with_template
from tests.server.pictures import image_part

pytestmark = pytest.mark.timeout(240)

TINY = Path(__file__).parents[2] / "pyvlm" / "assets" / "tiny"
ALTERNATING = """{%- for message in messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant') }}
{%- endif -%}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}"""
HOSTILE = {
    "attributes": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "growth": "{% set ns = namespace(s='x') %}"
    "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
}


def refusal(server: Running, *roles: str) -> str:
    messages = [{"role": role, "content": "x"} for role in roles]
    response = server.chat(messages=messages, max_tokens=1)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "chat_template_failed"), error
    assert error["param"] == "messages"
    return error["message"]


def test_case_28_a_template_that_refuses_the_order_of_roles(cache: None, tmp_path: Path) -> None:
    del cache
    folder = with_template(ALTERNATING, tmp_path / "alternating")
    host = Host(engine=engine_over(tiny_runner(), folder))
    server = host.serve()
    for roles in (("assistant",), ("user", "user"), ("user", "assistant", "system")):
        assert "Conversation roles must alternate user/assistant" in refusal(server, *roles)
    assert server.chat("x", max_tokens=1).status_code == 200
    assert server.becomes_idle()
    host.close()


@pytest.mark.parametrize("kind", HOSTILE)
def test_case_28_a_template_that_goes_too_far(cache: None, tmp_path: Path, kind: str) -> None:
    del cache
    folder = with_template(HOSTILE[kind], tmp_path / kind)
    host = Host(engine=engine_over(tiny_runner(), folder))
    server = host.serve()
    message = refusal(server, "user")
    assert not any(word in message for word in ("class", "0x", str(tmp_path), "Traceback"))
    assert server.client.get("/health").status_code == 200
    assert server.completion("x", max_tokens=1).status_code == 200
    host.close()


def language_model(folder: Path) -> Path:
    """The decoder of the embedded model as a checkpoint of its own."""
    whole = TINY
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json",
                 "special_tokens_map.json", "chat_template.jinja"):  # fmt: skip
        (folder / name).write_bytes((whole / name).read_bytes())
    config = json.loads((whole / "config.json").read_text())
    text = {**config["text_config"], "architectures": ["LlamaForCausalLM"]}
    text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
    (folder / "config.json").write_text(json.dumps(text))
    tensors = {
        name.replace("model.text_model.", "model."): tensor
        for name, tensor in load_file(whole / "model.safetensors").items()
        if name.startswith(("model.text_model.", "lm_head."))
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_case_29_texts_are_those_of_the_language_model_alone(
    server: Running, tmp_path: Path
) -> None:
    folder = language_model(tmp_path / "language")
    host = Host(engine=AsyncEngine.load(folder, options=OPTIONS))
    alone = host.serve()
    ends = server.service.engine().frontend.stop_token_ids
    asked = {"max_tokens": 24, "logit_bias": {str(i): -100 for i in ends}}
    for prompt in ("What is this?", "Tell me about the red circle.", "x"):
        for fields in ({"temperature": 0}, {"temperature": 1.5, "seed": 3}):
            both = [
                one.completion(prompt, logprobs=2, **asked, **fields).json()
                for one in (server, alone)
            ]
            assert both[0]["choices"] == both[1]["choices"]
            assert both[0]["usage"] == both[1]["usage"]
    response = alone.chat([image_part()])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "modality_unsupported")
    entry = alone.client.get("/v1/models").json()["data"][0]
    assert entry["capabilities"]["modalities"] == ["text"]
    host.close()
