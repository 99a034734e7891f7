"""Generation over HTTP: stops, lengths, seeds, choices, logprobs. Media cases 31 to 38, 47."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.events import Streamed, read_stream
from tests.server.pictures import image_part, text_part

PICTURE = [image_part("red"), text_part()]


def long_text(server: Running, **fields: Any) -> str:
    """More than a few tokens, by a ban on the end of the turn."""
    return server.say("Tell me.", logit_bias=no_end(server), **{"max_tokens": 24, **fields})


def no_end(server: Running) -> dict[str, float]:
    engine = server.service.loaded_engine
    assert engine is not None
    return {str(i): -100 for i in engine.frontend.stop_token_ids}


def stopped(server: Running, stop: Any, **fields: Any) -> dict[str, Any]:
    """The choice and the usage, checked against the stream of the same request."""
    asked = {"logit_bias": no_end(server), "max_tokens": 24, "stop": stop, **fields}
    body = server.chat("Tell me.", **asked).json()
    streamed = read_stream(
        server.chat("Tell me.", stream=True, stream_options={"include_usage": True}, **asked)
    )
    (choice,) = body["choices"]
    assert streamed.text() == choice["message"]["content"]
    assert streamed.reasons() == [choice["finish_reason"]]
    assert streamed.usages == [body["usage"]]
    return {**choice, "text": choice["message"]["content"], "usage": body["usage"]}


def test_case_31_every_stop_inside_a_text(server: Running) -> None:
    """Also those that straddle tokens: each substring of four characters, by its first place."""
    text = long_text(server)
    for at in range(0, min(len(text) - 4, 40), 3):
        stop = text[at : at + 4]
        choice = stopped(server, stop)
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert choice["usage"]["completion_tokens"] <= 24


def test_case_31_stop_in_the_first_token(server: Running) -> None:
    text = long_text(server)
    choice = stopped(server, text[0])
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["usage"]["completion_tokens"] == 1


def test_case_31_several_stops_and_one_a_prefix_of_the_other(server: Running) -> None:
    text = long_text(server)
    stop = text[6:9]
    before = text[: text.index(stop)]
    assert stopped(server, [stop, text[6:12], "zork", "\U0001f600", "nope"])["text"] == before


def test_case_31_a_stop_that_never_comes(server: Running) -> None:
    choice = stopped(server, "zork zork")
    assert (choice["text"], choice["finish_reason"]) == (long_text(server), "length")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_case_32_no_tokens(server: Running, field: str) -> None:
    for content in ("Hello", PICTURE):
        body = server.chat(content, **{field: 0}).json()
        (choice,) = body["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
        assert body["usage"]["completion_tokens"] == 0
        streamed = read_stream(server.chat(content, stream=True, **{field: 0}))
        assert (streamed.text(), streamed.reasons()) == ("", ["length"])
        assert streamed.is_done


def test_case_32_one_token(server: Running) -> None:
    body = server.chat("Tell me.", max_tokens=1, logit_bias=no_end(server)).json()
    assert body["usage"]["completion_tokens"] == 1
    assert body["choices"][0]["finish_reason"] == "length"


def test_case_32_capacity_exactly_and_beyond(server: Running) -> None:
    engine = server.service.loaded_engine
    assert engine is not None
    body = server.chat("Tell me.", logit_bias=no_end(server)).json()
    usage = body["usage"]
    assert usage["total_tokens"] == engine.capacity
    assert body["choices"][0]["finish_reason"] == "length"
    left = engine.capacity - usage["prompt_tokens"]
    assert server.chat("Tell me.", max_tokens=left, stop="e").status_code == 200
    for most in (left + 1, 10**6, 2**31 - 1):
        response = server.chat("Tell me.", max_tokens=most)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_overflow")
        for number in (usage["prompt_tokens"], most, engine.capacity):
            assert str(number) in error["message"]
    picture = server.chat(PICTURE, max_tokens=left)
    assert picture.json()["error"]["code"] == "context_overflow"


def test_case_33_end_of_turn_is_neither_shown_nor_counted(server: Running) -> None:
    body = server.chat(PICTURE, logprobs=True).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert "<" not in choice["message"]["content"]
    assert len(choice["logprobs"]["content"]) == body["usage"]["completion_tokens"]


def test_case_33_choices_are_interleaved_with_right_indexes(server: Running) -> None:
    asked = {"n": 3, "seed": 7, "temperature": 1.5, "max_tokens": 12, "logit_bias": no_end(server)}
    body = server.chat(PICTURE, **asked).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    streamed = read_stream(
        server.chat(PICTURE, stream=True, stream_options={"include_usage": True}, **asked)
    )
    assert [streamed.text(i) for i in range(3)] == texts
    assert all(streamed.reasons(i) == ["length"] for i in range(3))
    assert streamed.usages == [body["usage"]]
    assert body["usage"]["completion_tokens"] == 36
    assert body["usage"]["prompt_tokens"] == server.chat(PICTURE).json()["usage"]["prompt_tokens"]
    seeds = [server.say(PICTURE, **{**asked, "n": 1, "seed": 7 + i}) for i in range(3)]
    assert seeds == texts


def test_case_34_seeds_and_greedy(server: Running) -> None:
    hot = {"temperature": 2.0, "max_tokens": 16, "logit_bias": no_end(server)}
    assert server.say(seed=5, **hot) == server.say(seed=5, **hot)
    assert server.say(seed=-1, **hot) == server.say(seed=2**64 - 1, **hot)
    assert server.say(seed=5, **hot) != server.say(seed=6, **hot)
    greedy = {**hot, "temperature": 0}
    assert server.say(seed=5, **greedy) == server.say(seed=6, **greedy)
    assert server.say(seed=5, **{**hot, "top_k": 1}) == server.say(**greedy)
    for off in ({"top_k": 0}, {"top_k": -1}, {"top_p": 1}, {"min_p": 0}):
        assert server.say(seed=5, **hot, **off) == server.say(seed=5, **hot)
    assert server.say(seed=5, **hot, min_p=1) == server.say(**greedy)


def test_case_34_penalties_ignore_image_positions(server: Running) -> None:
    """The picture's id is repeated in the cache, not in the logical prompt: no bias is changed."""
    penalised = server.say(PICTURE, presence_penalty=0.01, frequency_penalty=0.01)
    assert penalised == server.say(PICTURE)


def together(server: Running, requests: list[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(lambda request: server.say(**request), requests))


def test_case_36_and_47_company_changes_nothing(server: Running) -> None:
    base = {"max_tokens": 12, "temperature": 1.0, "logit_bias": no_end(server)}
    requests = [
        {"content": [image_part("blue" if i % 2 else "red"), text_part()], "seed": i, **base}
        if i % 3 == 0
        else {"content": f"Tell me about {i}.", "seed": i, **base}
        for i in range(8)
    ]
    alone = [server.say(**request) for request in requests]
    assert together(server, requests) == alone
    assert server.say(**requests[1]) == alone[1]  # in a slot that may have held a picture


def shaped(logprobs: list[dict[str, Any]]) -> None:
    for entry in logprobs:
        assert entry["logprob"] <= 0
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
        assert sum(map(math.exp, tops)) <= 1 + 1e-6
        for one in (entry, *entry["top_logprobs"]):
            assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]


def test_case_38_logprobs_beside_a_picture(server: Running) -> None:
    asked = {"logprobs": True, "top_logprobs": 5, "max_tokens": 8, "logit_bias": no_end(server)}
    (choice,) = server.chat(PICTURE, **asked).json()["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 8
    shaped(content)
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode("utf-8", "replace") == choice["message"]["content"]
    streamed = read_stream(server.chat(PICTURE, stream=True, **asked))
    assert stream_logprobs(streamed) == content


def stream_logprobs(streamed: Streamed) -> list[dict[str, Any]]:
    return [
        entry
        for choice in streamed.choices()
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]


def test_case_38_bytes_of_partial_characters(server: Running) -> None:
    """Hot draws over single bytes, some of which are no characters. The text leaves special tokens
    out, the list does not."""
    special = server.service.engine().frontend.tokenizer.special_tokens
    asked = {"logprobs": True, "temperature": 3.0, "max_tokens": 60}
    for seed in range(3):
        (choice,) = server.chat("Write.", seed=seed, **asked).json()["choices"]
        content = choice["logprobs"]["content"]
        shaped(content)
        shown = [entry["bytes"] for entry in content if entry["token"] not in special]
        joined = b"".join(map(bytes, shown))
        assert joined.decode("utf-8", "replace") == choice["message"]["content"]


def test_chosen_logprob_is_among_the_top_when_greedy(server: Running) -> None:
    (choice,) = server.chat(logprobs=True, top_logprobs=1, max_tokens=4).json()["choices"]
    for entry in choice["logprobs"]["content"]:
        (top,) = entry["top_logprobs"]
        assert (top["token"], top["logprob"]) == (entry["token"], entry["logprob"])


def test_logprobs_without_top(server: Running) -> None:
    (choice,) = server.chat(logprobs=True, max_tokens=2).json()["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


def test_completion_logprobs(server: Running) -> None:
    body = server.completion("Tell me.", logprobs=3, max_tokens=6, logit_bias=no_end(server)).json()
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == 6 == len(logprobs["text_offset"])
    for token, at in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][at:].startswith(token)
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])


def test_completions_of_several_prompts(server: Running) -> None:
    prompts = ["What is this?", "Tell me."]
    body = server.completion(prompts, n=2, max_tokens=4).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    single = [server.completion(prompt, max_tokens=4).json() for prompt in prompts]
    assert texts[0] == texts[1] == single[0]["choices"][0]["text"]
    assert texts[2] == texts[3] == single[1]["choices"][0]["text"]
    told = body["usage"]["prompt_tokens"]
    assert told == sum(one["usage"]["prompt_tokens"] for one in single)
    streamed = read_stream(server.completion(prompts, n=2, max_tokens=4, stream=True))
    assert [streamed.text(i) for i in range(4)] == texts
    too_many = server.completion(["x"] * 9, n=2)
    assert too_many.json()["error"]["code"] == "invalid_parameter"


def test_completions_by_ids_are_those_of_their_text(server: Running) -> None:
    prompts = ["What is this?", "Tell me."]
    ids = [
        server.client.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
        for prompt in prompts
    ]
    by_text = server.completion(prompts, max_tokens=5).json()["choices"]
    assert server.completion(ids, max_tokens=5).json()["choices"] == by_text
    assert server.completion(ids[0], max_tokens=5).json()["choices"] == by_text[:1]


def test_logit_bias_chooses(server: Running) -> None:
    ids = server.client.post(
        "/tokenize", json={"prompt": "red", "add_special_tokens": False}
    ).json()["tokens"]
    told = server.say("Hello", max_tokens=3, logit_bias={str(ids[0]): 100})
    back = server.client.post("/detokenize", json={"tokens": [ids[0]] * 3}).json()["prompt"]
    assert told == back
