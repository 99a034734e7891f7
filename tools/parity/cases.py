"""What is compared: the prompts of a model, and each measurement on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.parity.bundles import Built
from tools.parity.compare import HiddenResult, LogitsResult, compare_hidden, compare_logits
from tools.parity.prompts import Prompt, Question, picture, text_ids
from tools.parity.reference import Array, Reference
from tools.parity.subject import Subject, chunk_plan, decoded_in_batch, teacher_forced
from tools.parity.tolerances import Tolerance, tolerance

LONG_TEXT = 200  # positions: past the trained context of the rope-scaled shapes
PLANS = {"whole": (512, None), "16": (16, None), "7": (7, None), "1": (1, None), "ragged": (37, 5)}


def tolerance_of(built: Built) -> Tolerance:
    vision = built.config.vision
    is_rounded = built.options.lowering == "kernels" and built.config.quantize == "int8"
    return tolerance(
        built.options.kv_dtype,
        built.config.decoder.num_layers,
        vision.num_layers if vision is not None else 0,
        activations="int16" if is_rounded else "f32",
    )


def prompts(reference: Reference) -> dict[str, Prompt]:
    """A chat and a long text; with a tower also one and three pictures of different aspects."""
    plain = reference.model.config.get_text_config().vocab_size * 2 // 3  # below special ids
    found = {
        "chat": reference.prompt(Question("What colour is the shape?")),
        "long text": Prompt(text_ids(LONG_TEXT, plain, seed=1)),
    }
    if reference.has_vision:
        pictures = (picture(60, 90, 1), picture(64, 64, 2), picture(100, 26, 3))
        one = Question("What colour is the shape?", pictures[:1])
        several = Question("Which of them shows a star?", pictures)
        found |= {
            "one picture": reference.prompt(one),
            "three pictures": reference.prompt(several),
        }
    return found


def plan_of(name: str, length: int, largest: int) -> list[int]:
    """Chunk lengths; `whole` is one chunk if the program has one so large."""
    size, seed = PLANS[name]
    return chunk_plan(length, min(size, largest), seed)


def measure_tower(
    subject: Subject, reference: Reference, prompt: Prompt, tolerated: Tolerance
) -> dict[str, HiddenResult]:
    """The prompt's tiles, the second and third of them partly padding."""
    assert prompt.pixels is not None
    assert prompt.valid is not None
    valid = prompt.valid.copy()
    half = valid.shape[1] // 2
    if len(valid) > 2:
        valid[1, :, half:], valid[2, half + 1 :] = False, False
        valid[2, :, half + 1 :] = False
    ours, theirs = subject.tower(prompt.pixels, valid), reference.tower(prompt.pixels, valid)
    states = {"embedding": (ours.embed, theirs.embed)}
    for layer, (mine, other) in enumerate(zip(ours.blocks, theirs.blocks, strict=True)):
        states[f"block {layer}"] = (mine, other)
    states["post norm, connector"] = (ours.rows, theirs.rows)
    return {
        name: compare_hidden(mine, other, tolerated.hidden)
        for name, (mine, other) in states.items()
    }


def measure_logits(
    subject: Subject, expected: Array, prompt: Prompt, plan: str, limit: float
) -> LogitsResult:
    largest = max(entry.size for entry in subject.built.prefill)
    chunks = plan_of(plan, len(prompt.ids), largest)
    slot = subject.built.options.num_slots - 1
    return compare_logits(teacher_forced(subject, prompt, chunks, slot=slot), expected, limit)


def batch_prompts(reference: Reference) -> tuple[list[Prompt], list[int]]:
    """Ragged sequences and how much of each is prefilled; the rest is decoded together."""
    found = prompts(reference)
    vocab = reference.model.config.get_text_config().vocab_size * 2 // 3
    chosen = [Prompt(text_ids(40, vocab, 7)), found["chat"], Prompt(text_ids(90, vocab, 8))]
    prefix = [1, len(found["chat"].ids) - 3, 67]
    if "one picture" in found:
        tail = text_ids(20, vocab, 9)
        one = found["one picture"]
        longer = Prompt(
            np.concatenate([one.ids, tail]), one.pixels, one.valid, one.num_tiles, one.name
        )
        chosen.append(longer)
        prefix.append(len(one.ids))
    return chosen, prefix


def measure_batch(
    subject: Subject,
    chosen: Sequence[Prompt],
    prefix: Sequence[int],
    expected: Sequence[Array],
    limit: float,
) -> list[LogitsResult]:
    found = decoded_in_batch(subject, chosen, prefix)
    return [
        compare_logits(ours, theirs, limit) for ours, theirs in zip(found, expected, strict=True)
    ]
