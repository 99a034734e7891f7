"""From a request to PreparedPrefill: plan, pictures, seam.

The plan needs no pixel, so whatever is wrong with a request shows there, except a picture's data.
"""

from __future__ import annotations

import hashlib
import operator
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

from pyvlm import _core
from pyvlm.chat import Message
from pyvlm.errors import PyvlmError, shown
from pyvlm.frontend import Frontend
from pyvlm.image_key import ImageKeys
from pyvlm.media.decode import admit_images
from pyvlm.media.header import ImageHeader
from pyvlm.media.transform import TileGrid
from pyvlm.models.idefics3_prompt import Idefics3Prompt
from pyvlm.prefill import build_prefill
from pyvlm.prompt_plan import PromptPlan, check_capacity, plan_prompt
from pyvlm.request import Embeddings, GenerationRequest, Prompt


@dataclass(frozen=True, slots=True)
class PicturePlan:
    """What the bytes of a request's pictures tell without decoding them. One entry per picture."""

    images: Sequence[bytes | Embeddings] = ()
    headers: tuple[ImageHeader | None, ...] = ()  # None: ready rows
    grids: tuple[TileGrid, ...] = ()
    first_same: tuple[int, ...] = ()  # the first picture with the same bytes, most often itself
    cache_keys: tuple[bytes, ...] = ()  # b"": ready rows. Empty if pictures are not cached


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request that fits; what is left to do is the pictures."""

    request: GenerationRequest
    prompt: PromptPlan


def plan_pictures(
    frontend: Frontend, images: Sequence[bytes | Embeddings], keys: ImageKeys | None = None
) -> PicturePlan:
    """Any thread. `keys`: how they are named in the engine's cache, if they are to be kept."""
    if images:
        frontend.capabilities.require("image")
    headers = _headers(frontend, images)
    grids = tuple(
        _grid(frontend, image, header, index)
        for index, (image, header) in enumerate(zip(images, headers, strict=True))
    )
    return PicturePlan(images, headers, grids, _first_same(images), _cache_keys(images, keys))


def plan_request(
    frontend: Frontend, request: GenerationRequest, capacity: int, pictures: PicturePlan
) -> RequestPlan:
    """Everything that can be decided before a pixel is decoded. Any thread."""
    _check_length(frontend, request.prompt, capacity)
    ids = logical_ids(frontend, request.prompt, allow_special=request.allow_special)
    prompt = plan_prompt(ids, pictures.grids, frontend.image_prompt)
    check_capacity(prompt, request.sampling.max_tokens, capacity)
    return RequestPlan(request, prompt)


def _check_length(frontend: Frontend, prompt: Prompt, capacity: int) -> None:
    """A megabyte takes the tokenizer seconds, and it is in the way of all other requests."""
    least = _least_positions(prompt, frontend.tokenizer.max_token_chars)
    if least > capacity:
        raise PyvlmError(
            f"the prompt takes at least {least} positions, beyond the capacity of {capacity}",
            code="context_overflow",
            param="prompt",
        )


def _least_positions(prompt: Prompt, max_token_chars: int) -> int:
    if isinstance(prompt, str):
        return -(-len(prompt) // max_token_chars)
    if prompt and isinstance(prompt[0], Message):
        messages = cast(Sequence[Message], prompt)
        return sum(message.num_chars for message in messages) // max_token_chars
    return len(prompt)


def logical_ids(frontend: Frontend, prompt: Prompt, *, allow_special: bool) -> list[int]:
    if isinstance(prompt, str):
        return frontend.text_ids(prompt, allow_special=allow_special)
    if prompt and not isinstance(prompt[0], Message):
        return _checked_ids(cast(Sequence[int], prompt), frontend.vocab_size)
    return frontend.chat_ids(cast(Sequence[Message], prompt))


def prefill_of(
    plan: RequestPlan,
    images: Sequence[_core.ImageInput],
    stop_token_ids: Sequence[int],
    deadline: float | None,
) -> _core.PreparedPrefill:
    """`deadline` on the monotonic clock. Reads every value of the pictures: not for a loop."""
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise deadline_error()
    return build_prefill(
        plan.prompt,
        images,
        plan.request.sampling,
        stop_token_ids=stop_token_ids,
        deadline_s=left,
    )


def deadline_error() -> PyvlmError:
    return PyvlmError("the deadline of the request has passed", code="deadline")


def _first_same(images: Sequence[bytes | Embeddings]) -> tuple[int, ...]:
    """Only pictures of one length are compared, by digests, which are made without the GIL."""
    sizes = Counter(len(image) for image in images if not isinstance(image, Embeddings))
    first: dict[Hashable, int] = {}
    found = []
    for index, image in enumerate(images):
        is_alone = isinstance(image, Embeddings) or sizes[len(image)] == 1
        name: Hashable = index if is_alone else hashlib.sha256(cast(bytes, image)).digest()
        found.append(first.setdefault(name, index))
    return tuple(found)


def _cache_keys(images: Sequence[bytes | Embeddings], keys: ImageKeys | None) -> tuple[bytes, ...]:
    if keys is None:
        return ()
    return tuple(b"" if isinstance(image, Embeddings) else keys.key(image) for image in images)


def _headers(
    frontend: Frontend, images: Sequence[bytes | Embeddings]
) -> tuple[ImageHeader | None, ...]:
    """The policy's limits count encoded pictures; ready rows are bounded by the capacity."""
    encoded = [image for image in images if not isinstance(image, Embeddings)]
    admitted = iter(admit_images(encoded, frontend.policy))
    return tuple(None if isinstance(image, Embeddings) else next(admitted) for image in images)


def _grid(
    frontend: Frontend, image: bytes | Embeddings, header: ImageHeader | None, index: int
) -> TileGrid:
    prompt, transform = frontend.image_prompt, frontend.transform
    assert prompt is not None  # the capability implies both
    assert transform is not None
    if header is not None:
        return transform.grid(*header.upright)
    assert isinstance(image, Embeddings)
    return _grid_of_rows(prompt, image, index)


def _grid_of_rows(prompt: Idefics3Prompt, image: Embeddings, index: int) -> TileGrid:
    grid = image.grid or TileGrid(0, 0)
    num_rows = image.rows.shape[0] if image.rows.ndim == 2 else -1
    if num_rows == prompt.num_rows(grid):
        return grid
    raise PyvlmError(
        f"image {index}: its embeddings have the shape {list(image.rows.shape)}; a grid of "
        f"{grid.rows} x {grid.cols} tiles takes {prompt.num_rows(grid)} rows",
        code="placeholder_mismatch",
        param=f"images[{index}]",
    )


def _checked_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    checked = []
    for given in ids:
        try:
            token_id = -1 if isinstance(given, bool) else operator.index(given)
        except TypeError:
            token_id = -1
        if not 0 <= token_id < vocab_size:
            raise PyvlmError(
                f"the prompt's ids must be integers from 0 to {vocab_size - 1}, not {shown(given)}",
                code="invalid_parameter",
                param="prompt",
            )
        checked.append(token_id)
    return checked
