"""How many cache positions a sequence gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.models.config import ModelConfig, VisionConfig

TEXT_POSITIONS = 256  # beside the largest image, for the question
ANSWER_POSITIONS = 256
TEXT_ONLY_CAPACITY = 2048
MIN_VLM_CAPACITY = 1024
_STEP = 64


def resolve_capacity(
    model: ModelConfig, preprocessor: Mapping[str, Any] | None, max_model_len: int | None
) -> int:
    """The wish if it is possible; without one, room for the largest image and a dialogue."""
    limit = model.decoder.rope.max_capacity
    if max_model_len is None:
        return min(_default(model, preprocessor), limit)
    if not 1 <= max_model_len <= limit:
        raise PyvlmError(
            f"--max-model-len {max_model_len} is outside 1 to {limit}, the positions of this model",
            code="invalid_parameter",
            param="max_model_len",
        )
    return max_model_len


def image_floor(vision: VisionConfig, preprocessor: Mapping[str, Any] | None) -> int:
    """Cache positions of the largest image: all tiles with their markers.

    A row of tiles is [marker, position, rows...] per tile and a newline; after the tiles comes
    the whole picture in one more tile, [newline, marker, global, rows..., marker].
    """
    whole = vision.rows_per_tile + 4
    settings = preprocessor or {}
    if not settings.get("do_image_splitting", False):
        return whole
    tile = _longest_edge(settings.get("max_image_size"), vision.image_size)
    side = -(-_longest_edge(settings.get("size"), tile) // tile)
    if side <= 1:
        return whole
    return side * (side * (vision.rows_per_tile + 2) + 1) + whole


def _default(model: ModelConfig, preprocessor: Mapping[str, Any] | None) -> int:
    if model.vision is None:
        return TEXT_ONLY_CAPACITY
    need = image_floor(model.vision, preprocessor) + TEXT_POSITIONS + ANSWER_POSITIONS
    return max(-(-need // _STEP) * _STEP, MIN_VLM_CAPACITY)


def _longest_edge(size: object, default: int) -> int:
    value = size.get("longest_edge") if isinstance(size, Mapping) else None
    return value if isinstance(value, int) and value > 0 else default
