"""The requests: OpenAI's own fields and the sampling fields that users of local servers know.

Types only; ranges are checked where the values mean something, by SamplingParams above all.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from pyvlm.capabilities import modality_unsupported
from pyvlm.errors import PyvlmError
from pyvlm.server.wire import Neutral, WireModel

OFF = (None, False)
NONE_OR_EMPTY_LIST: tuple[object, ...] = (None, [])

NEUTRAL_GENERATION: Neutral = {
    "best_of": (None, 1),
    "chat_template": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "ignore_eos": OFF,
    "include_stop_str_in_output": OFF,
    "length_penalty": (None, 1, 1.0),
    "min_tokens": (None, 0),
    "prompt_cache_retention": (None,),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "stop_token_ids": NONE_OR_EMPTY_LIST,
    "use_beam_search": OFF,
}
NEUTRAL_CHAT: Neutral = {
    **NEUTRAL_GENERATION,
    "add_generation_prompt": (None, True),
    "audio": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": OFF,
    "documents": NONE_OR_EMPTY_LIST,
    "echo": OFF,
    "function_call": (None, "none"),
    "functions": NONE_OR_EMPTY_LIST,
    "metadata": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": OFF,
    "tool_choice": (None, "none", "auto"),
    "tools": NONE_OR_EMPTY_LIST,
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
NEUTRAL_COMPLETIONS: Neutral = {
    **NEUTRAL_GENERATION,
    "echo": OFF,
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
}
NEUTRAL_MESSAGE: Neutral = {
    "annotations": NONE_OR_EMPTY_LIST,
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "reasoning_content": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": NONE_OR_EMPTY_LIST,
}

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_IDS = 1 << 20

_AUDIO = ("input_audio", "audio", "audio_url")
_VIDEO = ("input_video", "video", "video_url")


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ImageUrl(WireModel):
    """`detail`: auto, low and high are accepted and have no effect: the checkpoint's own processor
    decides how a picture is cut."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(WireModel):
    neutral: ClassVar[Neutral] = {"uuid": (None,)}

    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, Tag("<url>")] | Annotated[ImageUrl, Tag("<object>")],
        Discriminator(lambda value: "<url>" if isinstance(value, str) else "<object>"),
    ]

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


def _part_tag(value: object) -> str | None:
    """Refuses media that no model here takes, before anything else of the request is read."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind in _AUDIO or kind in _VIDEO:
        raise modality_unsupported("audio" if kind in _AUDIO else "video", ("text", "image"))
    if isinstance(value, dict) and kind not in ("text", "image_url"):
        raise PyvlmError(
            f"content parts are of the type text or image_url, not {_shown(kind)}",
            code="invalid_parameter",
            param="messages",
        )
    return None if kind is None else f"<{kind}>"


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")],
    Discriminator(_part_tag),
]


class ChatMessage(WireModel):
    neutral: ClassVar[Neutral] = NEUTRAL_MESSAGE

    role: str
    content: Annotated[
        Annotated[str, Tag("<string>")]
        | Annotated[list[Part], Field(fail_fast=True, max_length=MAX_PARTS), Tag("<parts>")],
        Discriminator(lambda value: "<parts>" if isinstance(value, list) else "<string>"),
    ]


Messages: TypeAlias = Annotated[list[ChatMessage], Field(fail_fast=True, max_length=MAX_MESSAGES)]


class StreamOptions(WireModel):
    neutral: ClassVar[Neutral] = {
        "continuous_usage_stats": OFF,
        "include_obfuscation": OFF,
    }

    include_usage: bool | None = None


StopStrings: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[str], Field(fail_fast=True), Tag("<list>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list) else "<string>"),
]


class GenerationFields(WireModel):
    """What chat and completions share. null is the same as leaving a field out."""

    model: str
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_p: float | None = None
    n: int | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Labels of the client's, without effect.
    user: str | None = Field(default=None, max_length=512)
    safety_identifier: str | None = Field(default=None, max_length=512)
    prompt_cache_key: str | None = Field(default=None, max_length=512)


class ChatRequest(GenerationFields):
    neutral: ClassVar[Neutral] = NEUTRAL_CHAT

    messages: Messages
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    top_logprobs: int | None = None


Ids: TypeAlias = Annotated[list[int], Field(fail_fast=True, max_length=MAX_IDS)]


def _prompt_tag(value: object) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<lists of ids>"
    return "<texts>" if isinstance(first, str) else "<ids>"


class CompletionRequest(GenerationFields):
    neutral: ClassVar[Neutral] = NEUTRAL_COMPLETIONS

    prompt: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[list[str], Field(fail_fast=True), Tag("<texts>")]
        | Annotated[Ids, Tag("<ids>")]
        | Annotated[list[Ids], Field(fail_fast=True), Tag("<lists of ids>")],
        Discriminator(_prompt_tag),
    ]
    logprobs: int | None = None


class TokenizeRequest(WireModel):
    """Either a prompt, tokenised as text, or messages through the chat template."""

    neutral: ClassVar[Neutral] = {
        "add_generation_prompt": (None, True),
        "chat_template": (None,),
        "continue_final_message": OFF,
        "tools": NONE_OR_EMPTY_LIST,
    }

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: Ids
    skip_special_tokens: bool | None = None


def _shown(value: Any) -> str:
    return repr(value[:40]) if isinstance(value, str) else "of no type"
