"""The packed batch that the network is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Batch:
    """Packed rows. Every tensor but `tile_of_slot` and `pixels` is [B, T].

    tokens i64, positions f32 (restart in every branch after the shared prefix), branches i32 (0 the
    shared prefix, -1 padding), targets i64 (the next token, -100 where no loss), slots bool (image
    positions, 16 in a row for each entry of tile_of_slot i64 [S]); pixels uint8 [N, 96, 96, 3];
    classes, colours i64 [N, 64] and centres i64 [N, 64]: what each patch shows, -100 if not told.
    """

    pixels: Tensor
    tokens: Tensor
    positions: Tensor
    branches: Tensor
    targets: Tensor
    slots: Tensor
    tile_of_slot: Tensor
    classes: Tensor
    colours: Tensor
    centres: Tensor


def attention_mask(branches: Tensor) -> Tensor:
    """[B, T] to bool [B, 1, T, T]: causal within a branch, everyone sees the shared prefix."""
    t = branches.shape[1]
    same = branches[:, :, None] == branches[:, None, :]
    shared = (branches == 0)[:, None, :]
    causal = torch.ones(t, t, dtype=torch.bool).tril()
    return ((same | shared) & causal)[:, None]
