"""Our OpenAPI document, and whatever can be generated from it: no server error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import Running

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
bounded = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def test_document_names_every_route(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    assert set(PATHS) < set(document["paths"])
    schemas = document["components"]["schemas"]
    for path in PATHS:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].removeprefix("#/components/schemas/")
        assert schemas[name]["additionalProperties"] is False
    assert "$defs" not in json.dumps(document)


def fine(server: Running, path: str, body: Any) -> None:
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    response = server.client.post(
        path, content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        for leak in ("Traceback", "/work", "pydantic", "0x", ".py"):
            assert leak not in error["message"].replace(repr(error["param"]), "")


FIELDS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
NAMES = (
    "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "messages", "min_p", "model", "n",
    "presence_penalty", "prompt", "repetition_penalty", "response_format", "seed", "stop",
    "stream", "stream_options", "temperature", "tokens", "tools", "top_k", "top_logprobs", "top_p",
    "user",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_any_value_in_any_field(server: Running, path: str) -> None:
    @bounded
    @given(st.sampled_from(NAMES), json_values)
    def check(name: str, value: Any) -> None:
        fine(server, path, {"model": "tiny", **FIELDS[path], name: value})

    check()


def test_any_message(server: Running) -> None:
    part = st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "input_audio", "x"])},
        optional={"text": json_values, "image_url": json_values},
    )
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | json_values},
        optional={"content": st.lists(part, max_size=3) | json_values, "name": json_values},
    )

    @bounded
    @given(st.lists(message | json_values, max_size=3))
    def check(messages: Any) -> None:
        fine(server, PATHS[0], {"model": "tiny", "messages": messages, "max_tokens": 1})

    check()


def test_schemathesis_finds_no_server_error(server: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    document = server.client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    for operation in schema.get_all_operations():
        ok = operation.ok()

        @settings(bounded, max_examples=25)
        @given(case=ok.as_strategy())
        def check(case: Any) -> None:
            response = case.call()
            assert response.status_code < 500, (case, response.text)

        check()
