"""The official client, synchronous and asynchronous, against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import openai
import pytest

from tests.server.conftest import Host, Running
from tests.server.pictures import data_url, image_part, picture, text_part

T = TypeVar("T")
KEY = "sk-test"
PICTURE = [{"role": "user", "content": [image_part("red"), text_part()]}]
TEXT = [{"role": "user", "content": "Tell me."}]


@pytest.fixture(scope="module")
def server(host: Host) -> Running:
    return host.serve(api_keys=(KEY,), max_body_bytes=400_000)


@pytest.fixture
def client(server: Running) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def with_async(server: Running, work: Any) -> Any:
    async def run() -> Any:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
        ) as client:
            return await work(client)

    return _run(run())


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": PICTURE, "temperature": 0, **fields}


def test_text_and_picture(client: Any) -> None:
    answer = client.chat.completions.create(**ask())
    assert "red" in answer.choices[0].message.content.lower()
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    text = client.chat.completions.create(**ask(messages=TEXT, max_completion_tokens=3))
    assert text.usage.completion_tokens <= 3


def test_many_pictures(client: Any) -> None:
    content = [*[image_part("red"), image_part("blue")] * 3, text_part()]
    answer = client.chat.completions.create(
        **ask(messages=[{"role": "user", "content": content}], max_tokens=2)
    )
    assert answer.usage.prompt_tokens_details.image_positions == 6 * 19


def test_streaming(client: Any) -> None:
    whole = client.chat.completions.create(**ask()).choices[0].message.content
    pieces, usage = [], None
    stream = client.chat.completions.create(
        **ask(stream=True, stream_options={"include_usage": True})
    )
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole
    assert usage.completion_tokens > 0


def test_streaming_accumulated_by_the_client(client: Any) -> None:
    whole = client.chat.completions.create(**ask()).choices[0].message.content
    with client.chat.completions.stream(**ask()) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole


def test_choices_stops_and_logprobs(client: Any) -> None:
    answer = client.chat.completions.create(
        **ask(n=3, seed=1, temperature=1.5, max_tokens=4, logprobs=True, top_logprobs=2)
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        for entry in choice.logprobs.content:
            assert len(entry.top_logprobs) == 2
            assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    stopped = client.chat.completions.create(**ask(stop=["e"]))
    assert "e" not in stopped.choices[0].message.content


def test_extra_sampling_fields(client: Any) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0}
    hot = client.chat.completions.create(**ask(temperature=2, extra_body=extra))
    assert hot.choices[0].message.content == (
        client.chat.completions.create(**ask()).choices[0].message.content
    )


def test_completions(client: Any) -> None:
    fields: dict[str, Any] = {"model": "tiny", "prompt": "Tell me.", "temperature": 0}
    whole = client.completions.create(**fields, max_tokens=5, logprobs=1)
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    stream = client.completions.create(**fields, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.capabilities["modalities"] == ["text", "image"]
    assert client.models.retrieve("tiny").max_model_len == model.max_model_len


def test_errors_have_the_right_class(server: Running, client: Any) -> None:
    bad_picture = [{"type": "image_url", "image_url": {"url": data_url(picture()[:99])}}]
    for fields, kind, code in (
        ({"temperature": -1}, openai.BadRequestError, "invalid_parameter"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": bad_picture}]},
            openai.BadRequestError,
            "image_decode_failed",
        ),
        ({"max_tokens": 10**6}, openai.BadRequestError, "context_overflow"),
        ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found"),
        ({"user": "x" * 500_000}, openai.APIStatusError, "body_too_large"),
    ):
        for is_stream in (False, True):
            with pytest.raises(kind) as caught:
                client.chat.completions.create(**ask(**fields, stream=is_stream))
            assert caught.value.code == code
            assert caught.value.request_id
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_timeout_and_leaving_free_everything(server: Running, client: Any) -> None:
    engine = server.service.loaded_engine
    assert engine is not None
    bias = {str(i): -100 for i in engine.frontend.stop_token_ids}
    endless = ask(messages=TEXT, logit_bias=bias)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(**endless)
    assert server.becomes_idle()
    stream = client.chat.completions.create(**endless, stream=True)
    next(iter(stream))
    stream.close()
    assert server.becomes_idle()


def test_asynchronous(server: Running, client: Any) -> None:
    whole = client.chat.completions.create(**ask()).choices[0].message.content

    async def streamed(remote: Any) -> str:
        pieces = []
        async for chunk in await remote.chat.completions.create(**ask(stream=True)):
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(pieces)

    async def work(remote: Any) -> list[str]:
        plain = [remote.chat.completions.create(**ask()) for _ in range(4)]
        answers = await asyncio.gather(*plain)
        return [
            *[answer.choices[0].message.content for answer in answers],
            *await asyncio.gather(*[streamed(remote) for _ in range(4)]),
        ]

    assert with_async(server, work) == [whole] * 8


def test_asynchronous_errors_and_leaving(server: Running) -> None:
    engine = server.service.loaded_engine
    assert engine is not None
    bias = {str(i): -100 for i in engine.frontend.stop_token_ids}

    async def work(remote: Any) -> None:
        with pytest.raises(openai.BadRequestError):
            await remote.chat.completions.create(**ask(n=0))
        asked = remote.chat.completions.create(**ask(messages=TEXT, logit_bias=bias))
        task = asyncio.ensure_future(asked)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_async(server, work)
    assert server.becomes_idle()
