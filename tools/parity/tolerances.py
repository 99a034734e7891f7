"""Every tolerance of the comparison with transformers, in one place, each with its reason.

Errors are relative to the spread of what is compared: of logits the standard deviation of the
reference's logits at that position, of hidden states the root mean square of the whole tensor. The
bound is on the largest error over all positions and elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

Float = Literal["f16", "f32"]

# Tower, connector, and a decoder whose cache is f32: both sides compute in f32 on the same
# (rounded) weights. What differs is the order of sums and the polynomials of exp and tanh. A sum
# of K products differs by about sqrt(K) * 2**-24, 3e-6 for K = 3072; a layer passes on what it
# received and adds its own, and attention scores of size up to ten amplify it.
F32_PER_LAYER = 2e-5

# A cache in f16 rounds every key and value to 11 bits: a relative error of at most 2**-11 = 4.9e-4
# each, random, so that a score (a sum of D products) moves by about its size times 2**-12, and an
# output of attention by the same share. The reference keeps f32 there: the tolerance covers what
# the rounding of keys and values itself does in the largest of some 1e5 logits, which the column
# `f16 KV alone` of docs/parity.md shows (transformers against transformers): up to 4e-3 a layer.
F16_CACHE_PER_LAYER = 6e-3

# The int8 kernels round the inputs of every matrix to 15 bits of the largest of a row, an error of
# up to a largest / 65532. In root mean squares of the row that is some 1e-4, for an outlier of six;
# a sum of K products keeps that relative size, a layer has four matrices, and the largest of many
# outputs is four or five times the usual one. Generated code computes int8 weights in f32.
INT16_INPUTS_PER_LAYER = 1.5e-3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`logits` in standard deviations of a position's logits; `hidden` in root mean squares."""

    logits: float
    hidden: float


def tolerance(
    kv: Float,
    num_layers: int,
    num_blocks: int = 0,
    *,
    activations: Literal["f32", "int16"] = "f32",
) -> Tolerance:
    """Independent errors of layers add as the square root of their number."""
    inputs = F32_PER_LAYER if activations == "f32" else INT16_INPUTS_PER_LAYER
    hidden = inputs * sqrt(max(num_blocks, 1))
    logits = inputs * sqrt(num_layers + num_blocks)
    if kv == "f16":
        cache = F16_CACHE_PER_LAYER * sqrt(num_layers)
        logits = cache if activations == "f32" else cache + logits
    return Tolerance(logits, hidden)
