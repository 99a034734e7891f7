"""Serving of vision-language models on the IREE runtime.

The names below are imported when they are first used, so `import pyvlm` alone loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pyvlm.errors import PyvlmError

if TYPE_CHECKING:
    from pyvlm.chat import ImagePart, Message, TextPart, user_message
    from pyvlm.engine import AsyncEngine
    from pyvlm.engine_options import EngineOptions
    from pyvlm.llm import LLM
    from pyvlm.media.policy import MediaPolicy
    from pyvlm.outputs import Delta, RequestOutput
    from pyvlm.recipe import BuildOptions
    from pyvlm.request import Embeddings, GenerationRequest
    from pyvlm.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngine",
    "BuildOptions",
    "Delta",
    "Embeddings",
    "EngineOptions",
    "GenerationRequest",
    "ImagePart",
    "MediaPolicy",
    "Message",
    "PyvlmError",
    "RequestOutput",
    "SamplingParams",
    "TextPart",
    "__version__",
    "user_message",
]

_HOMES = {
    "LLM": "pyvlm.llm",
    "AsyncEngine": "pyvlm.engine",
    "BuildOptions": "pyvlm.recipe",
    "Delta": "pyvlm.outputs",
    "Embeddings": "pyvlm.request",
    "EngineOptions": "pyvlm.engine_options",
    "GenerationRequest": "pyvlm.request",
    "ImagePart": "pyvlm.chat",
    "MediaPolicy": "pyvlm.media.policy",
    "Message": "pyvlm.chat",
    "RequestOutput": "pyvlm.outputs",
    "SamplingParams": "pyvlm.sampling",
    "TextPart": "pyvlm.chat",
    "user_message": "pyvlm.chat",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
