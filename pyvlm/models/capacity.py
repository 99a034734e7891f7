"""How many cache positions a sequence gets."""

from __future__ import annotations

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import ImageTransform
from pyvlm.models.config import ModelConfig, VisionConfig
from pyvlm.models.idefics3_prompt import max_positions

TEXT_POSITIONS = 256  # beside the largest image, for the question
ANSWER_POSITIONS = 256
TEXT_ONLY_CAPACITY = 2048
MIN_VLM_CAPACITY = 1024
_STEP = 64


def resolve_capacity(
    model: ModelConfig, transform: ImageTransform | None, max_model_len: int | None
) -> int:
    """The wish if it is possible; without one, room for the largest image and a dialogue."""
    limit = model.decoder.rope.max_capacity
    if max_model_len is None:
        return min(_default(model, transform, limit), limit)
    if not 1 <= max_model_len <= limit:
        raise PyvlmError(
            f"--max-model-len {max_model_len} is outside 1 to {limit}, the positions of this model",
            code="invalid_parameter",
            param="max_model_len",
        )
    return max_model_len


def image_floor(vision: VisionConfig, transform: ImageTransform) -> int | None:
    """Cache positions of the largest image; None if images have no largest size."""
    grid = transform.largest_grid
    return None if grid is None else max_positions(grid, vision.rows_per_tile)


def most_tiles(model: ModelConfig, transform: ImageTransform | None, capacity: int) -> int:
    """Tiles of the largest picture that a sequence of `capacity` positions takes."""
    if model.vision is None or transform is None:
        return 0
    fitting = max(1, capacity // model.vision.rows_per_tile)
    grid = transform.largest_grid
    return fitting if grid is None else min(fitting, grid.num_tiles)


def _default(model: ModelConfig, transform: ImageTransform | None, limit: int) -> int:
    if model.vision is None or transform is None:
        return TEXT_ONLY_CAPACITY
    floor = image_floor(model.vision, transform)
    if floor is None:
        return limit
    need = floor + TEXT_POSITIONS + ANSWER_POSITIONS
    return max(-(-need // _STEP) * _STEP, MIN_VLM_CAPACITY)
