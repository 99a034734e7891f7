"""What an image placeholder becomes in Idefics3/SmolVLM prompts: tile markers around row tokens.

One tile:  fake global row*N fake
Tiled:     (fake row_r_col_c row*N)* "\n" for each row of tiles, then "\n" fake global row*N fake

The reference makes this as a string and tokenises it. It begins and ends with a special token, so
its ids do not depend on what stands around it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import TileGrid
from pyvlm.tokenizer import Tokenizer

IMAGE_TOKEN = "<image>"
FAKE_TOKEN = "<fake_token_around_image>"
GLOBAL_TAG = "<global-img>"
MARKERS = frozenset(
    {IMAGE_TOKEN, FAKE_TOKEN, GLOBAL_TAG, "<end_of_utterance>"}
    | {f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)}
)


def max_positions(grid: TileGrid, rows_per_tile: int) -> int:
    """Positions of a picture; a tokenizer that has a token for two newlines needs one less."""
    single = rows_per_tile + 3
    if grid.num_tiles == 1:
        return single
    num_newlines = grid.rows + 1
    return grid.rows * grid.cols * (rows_per_tile + 2) + num_newlines + single


class Idefics3Prompt:
    """Expands placeholders for one checkpoint. Safe to share between threads."""

    image_token = IMAGE_TOKEN

    def __init__(self, tokenizer: Tokenizer, *, image_token_id: int, rows_per_tile: int) -> None:
        self.image_token_id = image_token_id
        self._tokenizer = tokenizer
        self._rows_per_tile = rows_per_tile
        found = tokenizer.token_id(IMAGE_TOKEN)
        if found != image_token_id:
            raise PyvlmError(
                f"config.json says image_token_id {image_token_id}, but {IMAGE_TOKEN} is "
                f"{found} in the tokenizer",
                code="model_invalid",
            )
        self.expand = lru_cache(maxsize=64)(self._expand)

    def num_rows(self, grid: TileGrid) -> int:
        return grid.num_tiles * self._rows_per_tile

    def _expand(self, grid: TileGrid) -> npt.NDArray[np.int32]:
        """Ids of one picture's positions, read-only; image_token_id where an encoder row goes."""
        text = self._single() if grid.num_tiles == 1 else self._tiled(grid)
        ids = np.array(self._tokenizer.encode(text), np.int32)
        ids.flags.writeable = False
        if int((ids == self.image_token_id).sum()) != self.num_rows(grid):
            raise PyvlmError(
                "the tokenizer does not keep the image markers apart", code="model_invalid"
            )
        return ids

    def _single(self) -> str:
        return FAKE_TOKEN + GLOBAL_TAG + IMAGE_TOKEN * self._rows_per_tile + FAKE_TOKEN

    def _tiled(self, grid: TileGrid) -> str:
        rows = IMAGE_TOKEN * self._rows_per_tile
        lines = [
            "".join(f"{FAKE_TOKEN}<row_{row}_col_{col}>{rows}" for col in range(1, grid.cols + 1))
            for row in range(1, grid.rows + 1)
        ]
        return "\n".join(lines) + "\n\n" + self._single()
