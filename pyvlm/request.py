"""What a caller asks for: the one request that command line, library and server all make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyvlm.chat import Message
from pyvlm.errors import PyvlmError, shown
from pyvlm.media.transform import TileGrid
from pyvlm.sampling import SamplingParams, as_number

Prompt: TypeAlias = Sequence[Message] | str | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Ready decoder rows of one picture, from a tower in the caller's process.

    rows [R, H] float32 or float16, C-contiguous and finite: read at their own address, so they must
    not change until the first token has come. `grid` says how the picture is cut, since the markers
    around the rows depend on it; None is right for R = rows of a single tile.
    """

    rows: npt.NDArray[np.float32] | npt.NDArray[np.float16]
    grid: TileGrid | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rows, np.ndarray):
            raise _invalid("rows", "an array of numpy", self.rows)
        if self.grid is not None and not isinstance(self.grid, TileGrid):
            raise _invalid("grid", "a TileGrid", self.grid)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation. `images` are in the order of the placeholders that they fill.

    Generations that are started together with one and the same tuple of images, as the choices of
    a request are, share it: it counts, is prepared and is encoded once.

    prompt: messages for the chat template, text without a template, or logical ids (one placeholder
    id per image). allow_special is for text: whether special tokens and placeholders that it spells
    are taken as such (trusted text), or stay text.
    deadline_s counts from the first `anext` on what `generate` returned; None is no deadline.
    """

    prompt: Prompt
    images: Sequence[bytes | Embeddings] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline_s: float | None = None
    allow_special: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.images, (list, tuple)):
            raise _invalid("images", "a list of bytes and Embeddings", self.images)
        object.__setattr__(self, "images", tuple(self.images))  # the caller's list may change
        _check_prompt(self.prompt)
        if not isinstance(self.sampling, SamplingParams):
            raise _invalid("sampling", "SamplingParams", self.sampling)
        if self.deadline_s is not None:
            object.__setattr__(self, "deadline_s", _as_deadline(self.deadline_s))
        for index, image in enumerate(self.images):
            if not isinstance(image, (bytes, Embeddings)):
                raise PyvlmError(
                    f"image {index} must be bytes or Embeddings, not {type(image).__name__}",
                    code="invalid_parameter",
                    param=f"images[{index}]",
                )

    @property
    def image_bytes(self) -> int:
        """Of the encoded pictures that this request holds."""
        return sum(len(image) for image in self.images if not isinstance(image, Embeddings))


def _as_deadline(given: object) -> float:
    if 0 < (number := as_number(given)) < math.inf:
        return number
    raise _invalid("deadline_s", "a finite number above 0", given)


def _invalid(name: str, expected: str, value: object) -> PyvlmError:
    return PyvlmError(
        f"{name} must be {expected}, not {shown(value)}", code="invalid_parameter", param=name
    )


def _check_prompt(prompt: object) -> None:
    if isinstance(prompt, str) or _is_list_of_one_kind(prompt):
        return
    raise PyvlmError(
        f"a prompt must be a text, messages or ids, not {type(prompt).__name__}",
        code="invalid_parameter",
        param="prompt",
    )


def _is_list_of_one_kind(prompt: object) -> bool:
    """Messages, or none; whether those are ids shows when they are checked. Bytes are no ids."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray, memoryview)):
        return False
    return len({isinstance(item, Message) for item in prompt}) <= 1
