"""/v1/chat/completions with the embedded model: shapes, text, pictures, streaming."""

from __future__ import annotations

import pytest

from tests.server.conftest import Running
from tests.server.events import read_stream
from tests.server.pictures import image_part, text_part

IMAGE_POSITIONS = 19  # 16 rows and 3 markers


def test_answer_has_openais_shape(server: Running) -> None:
    response = server.chat([image_part("red"), text_part()])
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert "red" in choice["message"]["content"].lower()
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"image_positions": IMAGE_POSITIONS}
    assert usage["prompt_tokens"] < IMAGE_POSITIONS  # logical: one for the picture


@pytest.mark.parametrize("colour", ["red", "blue"])
def test_stream_of_a_picture_is_the_same_text(server: Running, colour: str) -> None:
    whole = server.say([image_part(colour), text_part()])
    content = [image_part(colour), text_part()]
    streamed = read_stream(server.chat(content, stream=True))
    assert colour in whole.lower()
    assert streamed.text() == whole
    assert streamed.is_done
    first = streamed.choices()[0]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert streamed.reasons() == ["stop"]
    assert streamed.choices()[-1]["delta"] == {}
    assert streamed.usages == []


def test_usage_comes_once_and_last_if_asked_for(server: Running) -> None:
    whole = server.chat("Say something.").json()["usage"]
    streamed = read_stream(
        server.chat("Say something.", stream=True, stream_options={"include_usage": True})
    )
    assert streamed.usages == [whole]
    assert streamed.chunks[-1]["choices"] == []
    assert all("usage" in chunk for chunk in streamed.chunks)


def test_stages_come_as_a_comment_and_as_a_header(server: Running) -> None:
    response = server.chat([image_part(), text_part()])
    streamed = read_stream(server.chat([image_part(), text_part()], stream=True))
    (comment,) = streamed.comments
    for told in (response.headers["server-timing"], comment.removeprefix("server-timing ")):
        names = {entry.partition(";")[0].strip() for entry in told.split(",")}
        assert names == {
            "queue", "fetch", "preprocess_wait", "decode_image", "transform", "encode", "prefill",
            "decode",
        }  # fmt: skip


def test_request_id_is_taken_over_if_it_is_plain(server: Running) -> None:
    def answered(given: str) -> str:
        response = server.client.get("/version", headers={"x-request-id": given})
        return response.headers["x-request-id"]

    assert answered("abc-1.2:3_X") == "abc-1.2:3_X"
    assert answered("a b") != "a b"
    assert len(answered("x" * 200)) == 32
