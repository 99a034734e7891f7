"""/tokenize and /detokenize beside other requests: bounds, leaving, draining."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pyvlm.server.routes.tokens import MAX_TEXT_BYTES
from pyvlm.tokenizer import Tokenizer
from tests.server.conftest import HANG_S, Running, eventually
from tests.server.raw import connection, post


class Gate:
    """Holds the tokenizer, and counts who came in."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = 0

    def wait(self) -> None:
        self.entered += 1
        assert self.opened.wait(HANG_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, decode, encode = Gate(), Tokenizer.decode, Tokenizer.encode_untrusted

    def slow_decode(self: Tokenizer, *args: Any, **options: Any) -> str:
        gate.wait()
        return decode(self, *args, **options)

    def slow_encode(self: Tokenizer, *args: Any, **options: Any) -> list[int]:
        gate.wait()
        return encode(self, *args, **options)

    monkeypatch.setattr(Tokenizer, "decode", slow_decode)
    monkeypatch.setattr(Tokenizer, "encode_untrusted", slow_encode)
    yield gate
    gate.opened.set()


def test_special_tokens_are_shown_on_demand(server: Running) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    tokens = server.client.post("/tokenize", json={"messages": messages}).json()["tokens"]

    def text(**fields: Any) -> str:
        asked = {"tokens": tokens, **fields}
        return server.client.post("/detokenize", json=asked).json()["prompt"]

    whole = text(skip_special_tokens=False)
    assert whole.startswith("<|im_start|>User: Hello<end_of_utterance>")
    assert text() == text(skip_special_tokens=True) == text(skip_special_tokens=None)
    assert text() == whole.replace("<|im_start|>", "").replace("<end_of_utterance>", "")
    wrong = {"tokens": tokens, "skip_special_tokens": "no"}
    assert server.client.post("/detokenize", json=wrong).status_code == 400


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_text_is_bounded(server: Running, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Tokenizer, "_encode")  # whoever asks the tokenizer fails
    text = "\N{GRINNING FACE}" * (MAX_TEXT_BYTES // 4)
    if field == "prompt":
        asked: Any = text + "a"
    else:
        asked = [{"role": "user", "content": text}, {"role": "user", "content": "a"}]
    response = server.client.post("/tokenize", json={field: asked})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_overflow")
    assert error["param"] == field
    assert str(MAX_TEXT_BYTES) in error["message"]
    assert str(MAX_TEXT_BYTES + 1) in error["message"]


def test_a_text_longer_than_the_capacity_is_counted(server: Running) -> None:
    told = server.client.post("/tokenize", json={"prompt": "a b " * 5000}).json()
    assert told["count"] == len(told["tokens"]) > told["max_model_len"]


def test_the_template_alone_adds_special_tokens(server: Running) -> None:
    asked = {"messages": [{"role": "user", "content": "red"}]}
    told = server.client.post("/tokenize", json=asked).json()["tokens"]
    without = server.client.post("/tokenize", json={**asked, "add_special_tokens": False})
    assert without.json()["tokens"] == told
    error = server.client.post("/tokenize", json={**asked, "add_special_tokens": True}).json()
    assert error["error"]["code"] == "unsupported_parameter"
    assert error["error"]["param"] == "add_special_tokens"


REQUESTS = [("/tokenize", {"prompt": "red"}), ("/detokenize", {"tokens": [5]})]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_drain_waits_for_it(server: Running, gate: Gate, path: str, body: Any) -> None:
    with connection(server.url) as raw:
        raw.sendall(post(path, body))
        assert eventually(lambda: gate.entered == 1)
        assert server.service.num_active == 1
        assert server.client.get("/health").status_code == 200  # the loop is free
        gate.opened.set()
        assert raw.recv(1)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_those_who_left_are_not_worked_for(
    server: Running, gate: Gate, path: str, body: Any
) -> None:
    """Ten ask and leave behind one whose text is being worked on."""
    with connection(server.url) as first:
        first.sendall(post(path, body))
        assert eventually(lambda: gate.entered == 1)
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(connection(server.url)).sendall(post(path, body))
            assert eventually(lambda: server.service.num_active == 11)
        assert eventually(lambda: server.service.num_active == 1)
        gate.opened.set()
        assert first.recv(1)
    assert server.becomes_idle()
    assert gate.entered == 1
