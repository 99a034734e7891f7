"""The sequences of the greedy comparison, and the engine that runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyvlm.build import BuildOptions
from tools.parity.bundles import Variant
from tools.parity.compare import GreedyResult, compare_greedy
from tools.parity.generation import Generator, Job, text_job
from tools.parity.lab import Lab
from tools.parity.prompts import Prompt, Question, picture, text_ids
from tools.parity.reference import Generated, Reference
from tools.parity.tolerances import tolerance

STEPS = 64


def open_generator(
    lab: Lab, model: str, variant: Variant, *, capacity: int = 512, slots: int = 4
) -> Generator:
    options = BuildOptions(
        dtype=variant.dtype,
        quantize=variant.quantize,
        kv_dtype=variant.kv,
        lowering=variant.lowering,
        max_model_len=capacity,
        max_num_seqs=slots,
    )
    return Generator(lab.checkpoint(model), options, lab.bundle_cache())


def greedy_cases(generator: Generator, reference: Reference) -> list[tuple[Job, Prompt]]:
    """More sequences than slots, ragged, of every kind that the model takes."""
    questions = [Question("What colour is the shape?"), Question("Why?")]
    if reference.has_vision:
        first, second, third = picture(60, 90, 1), picture(64, 64, 2), picture(100, 26, 3)
        questions += [
            Question("What colour is the shape?", (first,)),
            Question("Which shape do you see?", (second,)),
            Question("Which of them shows a star?", (first, second, third)),
        ]
    vocab = reference.model.config.get_text_config().vocab_size * 2 // 3
    raw = [text_ids(length, vocab, length) for length in (1, 130)]
    return [
        *((generator.job(q), reference.prompt(q)) for q in questions),
        *((text_job(ids), Prompt(ids)) for ids in raw),
    ]


def closed(tokens: NDArray[np.int32], steps: int, stop: Sequence[int]) -> NDArray[np.int32]:
    """The engine leaves out the id that ended a sequence; transformers gives it."""
    return tokens if len(tokens) == steps else np.append(tokens, np.int32(stop[0]))


def against(
    generator: Generator,
    found: NDArray[np.int32],
    expected: Generated,
    steps: int,
    stop: Sequence[int] = (),
) -> GreedyResult:
    """Stop ids all count as one, their first."""
    theirs = expected.tokens.copy()
    if stop:
        theirs[np.isin(theirs, stop)] = stop[0]
    manifest = generator.bundle.manifest
    kv = "f16" if manifest.kv.dtype == "f16" else "f32"
    is_rounded = manifest.lowering == "kernels" and manifest.model.quantize == "int8"
    limit = tolerance(
        kv, manifest.model.num_layers, activations="int16" if is_rounded else "f32"
    ).logits
    return compare_greedy(closed(found, steps, stop), theirs, expected.logits, limit)


def followed(
    generator: Generator,
    reference: Reference,
    prompt: Prompt,
    found: NDArray[np.int32],
    steps: int,
    stop: Sequence[int] = (),
) -> GreedyResult:
    """`against` in one pass of the reference instead of one for each id."""
    expected = reference.follow(prompt, closed(found, steps, stop))
    return against(generator, found, expected, steps, stop)
