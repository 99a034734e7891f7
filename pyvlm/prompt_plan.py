"""A prompt laid out in cache positions, from logical ids and the pictures' header sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import TileGrid
from pyvlm.models.idefics3_prompt import Idefics3Prompt


@dataclass(frozen=True, slots=True)
class TextSpan:
    start: int  # first logical id
    count: int


@dataclass(frozen=True, slots=True)
class ImageSpan:
    index: int
    expanded_ids: npt.NDArray[np.int32]  # image token id where an encoder row goes


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A prompt laid out in positions. The spans cover logical_ids in order."""

    logical_ids: npt.NDArray[np.int32]  # [T], one placeholder per image
    spans: tuple[TextSpan | ImageSpan, ...]
    image_token_id: int | None

    @property
    def num_image_positions(self) -> int:
        """Markers included."""
        return sum(len(span.expanded_ids) for span in self.spans if isinstance(span, ImageSpan))

    @property
    def num_positions(self) -> int:
        return self.num_image_positions + sum(
            span.count for span in self.spans if isinstance(span, TextSpan)
        )


def plan_prompt(
    logical_ids: Sequence[int], grids: Sequence[TileGrid], prompt: Idefics3Prompt | None
) -> PromptPlan:
    """`grids`: tiles of each picture, in order. One placeholder per picture, or it is an error."""
    if not logical_ids:
        raise PyvlmError("the prompt is empty", code="empty_prompt", param="prompt")
    ids = np.array(logical_ids, np.int32)
    places = [] if prompt is None else np.flatnonzero(ids == prompt.image_token_id).tolist()
    if len(places) != len(grids):
        raise PyvlmError(
            f"the prompt has {len(places)} image placeholders, but {len(grids)} images were given",
            code="placeholder_mismatch",
            param="prompt",
        )
    spans: list[TextSpan | ImageSpan] = []
    at = 0
    for index, place in enumerate(places):
        assert prompt is not None
        if place > at:
            spans.append(TextSpan(at, place - at))
        spans.append(ImageSpan(index, prompt.expand(grids[index])))
        at = place + 1
    if at < len(ids):
        spans.append(TextSpan(at, len(ids) - at))
    return PromptPlan(ids, tuple(spans), None if prompt is None else prompt.image_token_id)


def check_capacity(plan: PromptPlan, max_tokens: int | None, capacity: int) -> None:
    """The engine's own rule, asked before any pixel is decoded."""
    positions = plan.num_positions
    if positions + (1 if max_tokens is None else max_tokens) <= capacity:
        return
    asked = "unset" if max_tokens is None else str(max_tokens)
    raise PyvlmError(
        f"the prompt takes {positions} positions and max_tokens is {asked}, together beyond the "
        f"capacity of {capacity}",
        code="context_overflow",
        param="prompt" if max_tokens is None else "max_tokens",
    )
