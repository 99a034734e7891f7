"""Request fields: types, ranges, unknown names; refusals name the field. Media cases 39, 41."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from pyvlm.server.schema import NEUTRAL_CHAT, NEUTRAL_COMPLETIONS
from tests.server.conftest import Running


def refused(response: httpx.Response, param: str, code: str = "invalid_parameter") -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == "invalid_request_error"
    assert param.partition("[")[0] in error["message"]


def chat_raw(server: Running, field: str, text: str) -> httpx.Response:
    """`text` is JSON, or what some writers take for it."""
    body = f'{{"model":"tiny","messages":[{{"role":"user","content":"x"}}],"{field}":{text}}}'
    return server.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )


FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")


@pytest.mark.parametrize("field", [*FLOATS, "repetition_penalty"])
@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e999", "true", '"1"', "[1]", "-1e300", "1" + "0" * 400],
)
def test_case_41_floats(server: Running, field: str, text: str) -> None:
    refused(chat_raw(server, field, text), field)


@pytest.mark.parametrize("field", ["n", "seed", "max_tokens", "max_completion_tokens", "top_k"])
@pytest.mark.parametrize("text", ["NaN", "true", '"1"', "1.5", "{}", "-99999999999999999999"])
def test_case_41_integers(server: Running, field: str, text: str) -> None:
    response = chat_raw(server, field, text)
    param = "max_tokens" if text.startswith("-9") and field.startswith("max") else field
    refused(response, param)


@pytest.mark.parametrize("n", [0, -1, 17, 10**6, 10**30])
def test_case_41_number_of_choices(server: Running, n: int) -> None:
    refused(server.chat(n=n), "n")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -2),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("seed", 2**64),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["x"] * 17),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),  # without stream
        ("top_logprobs", 2),  # without logprobs
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1000000": 1}),
        ("logit_bias", {str(i): 0 for i in range(1025)}),
        ("max_tokens", -1),
        ("user", "x" * 513),
    ],
)
def test_values_out_of_range(server: Running, field: str, value: Any) -> None:
    refused(server.chat(**{field: value}), field)


def test_lists_name_the_entry(server: Running) -> None:
    refused(server.chat(stop=["a", 1]), "stop[1]")
    refused(server.chat(logprobs=True, top_logprobs=21), "top_logprobs")
    refused(server.completion([1, "a"]), "prompt[1]")
    refused(server.completion([[1], [True]]), "prompt[1][0]")
    refused(server.chat(logit_bias={"5": "x"}), "logit_bias.5")


def test_two_names_of_one_limit_must_agree(server: Running) -> None:
    refused(server.chat(max_tokens=1, max_completion_tokens=2), "max_tokens")
    assert server.chat(max_tokens=1, max_completion_tokens=1).status_code == 200


@pytest.mark.parametrize("field", sorted(NEUTRAL_CHAT))
def test_case_39_known_fields_are_refused_unless_neutral(server: Running, field: str) -> None:
    refused(server.chat(**{field: {"some": "thing"}}), field, "unsupported_parameter")
    everything = {"max_tokens": 0, field: NEUTRAL_CHAT[field][-1]}
    assert server.chat(**everything).status_code == 200


def test_case_39_all_neutral_values_together(server: Running) -> None:
    chat = {name: values[0] for name, values in NEUTRAL_CHAT.items()}
    assert server.chat(max_tokens=0, **chat).status_code == 200
    completion = {name: values[0] for name, values in NEUTRAL_COMPLETIONS.items()}
    assert server.completion(max_tokens=0, **completion).status_code == 200


@pytest.mark.parametrize("value", [None, 1, "x"])
def test_case_39_unknown_fields_are_refused_by_name(server: Running, value: Any) -> None:
    refused(server.chat(zork=value), "zork", "unsupported_parameter")
    refused(server.completion(zork=value), "zork", "unsupported_parameter")


def test_null_is_the_same_as_nothing(server: Running) -> None:
    fields = dict.fromkeys(
        ["frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "seed", "stop", "stream",
         "stream_options", "top_k", "top_logprobs", "top_p", "user"]
    )  # fmt: skip
    assert server.say(**fields) == server.say()


def test_labels_of_the_client_have_no_effect(server: Running) -> None:
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}
    assert server.say(**labels) == server.say()


def test_an_assistant_message_can_be_sent_back_as_it_came(server: Running) -> None:
    message = server.chat("Hello").json()["choices"][0]["message"]
    more = {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    messages = [
        {"role": "user", "content": "Hello"},
        {**message, **more},
        {"role": "user", "content": "Again"},
    ]
    assert server.chat(messages=messages).status_code == 200


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role", "invalid_parameter"),
        ({"role": 5, "content": "x"}, "messages[0].role", "invalid_parameter"),
        ({"content": "x"}, "messages[0].role", "invalid_parameter"),
        ({"role": "user"}, "messages[0].content", "invalid_parameter"),
        ({"role": "user", "content": None}, "messages[0].content", "invalid_parameter"),
        ({"role": "user", "content": {}}, "messages[0].content", "invalid_parameter"),
        (
            {"role": "user", "content": "x", "name": "b"},
            "messages[0].name",
            "unsupported_parameter",
        ),
        ({"role": "user", "content": "x", "zork": 1}, "messages[0].zork", "unsupported_parameter"),
        ("x", "messages[0]", "invalid_parameter"),
    ],
)
def test_messages(server: Running, message: Any, param: str, code: str) -> None:
    refused(server.chat(messages=[message]), param, code)


def test_model_is_needed_and_must_be_served(server: Running) -> None:
    refused(server.chat(model=None), "model")
    response = server.chat(model="gpt-4o")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}]])
def test_empty_prompts(server: Running, messages: list[Any]) -> None:
    response = server.chat(messages=messages)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_prompt")


@pytest.mark.parametrize("prompt", ["", [], [[]]])
def test_empty_completion_prompts(server: Running, prompt: Any) -> None:
    response = server.completion(prompt)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "empty_prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{}x",
        b"\xff\xfe{}",
        b'{"model": "\\ud800"}',
        b'{"model": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"[" + b"[]," * 300_000 + b"[]]",
        b'{"n": 1' + b"0" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_request(server: Running, body: bytes) -> None:
    response = server.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "invalid_parameter"
    assert len(response.text) < 500


def test_many_wrong_entries_make_one_short_error(server: Running) -> None:
    refused(server.completion(["a", *[1] * 100_000]), "prompt[1]")
    many = json.dumps({f"field{i}": 1 for i in range(50_000)})
    response = server.client.post(
        "/v1/completions", content=many, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert len(response.text) < 500
