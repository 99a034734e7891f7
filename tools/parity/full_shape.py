"""The SmolVLM-256M shape with random weights: one picture of 512 x 512, which is 17 tiles."""

from __future__ import annotations

import time
from pathlib import Path

from pyvlm.build import BuildOptions
from pyvlm.cache import Cache
from pyvlm.emit.layout import Lowering
from tools.make_checkpoint import SHAPES, make_checkpoint
from tools.parity.bundles import Built, Size, Variant, build, open_program
from tools.parity.cases import measure_batch, measure_tower, tolerance_of
from tools.parity.compare import compare_logits
from tools.parity.generation import Generator, text_job
from tools.parity.greedy import STEPS, followed
from tools.parity.prompts import Prompt, Question, picture, text_ids
from tools.parity.reference import Array, Reference
from tools.parity.subject import Subject, chunk_plan, teacher_forced
from tools.parity.tables import Tables

CHUNK, CAPACITY = 256, 1536
TILES = 3  # whose hidden states are compared layer by layer; logits see all 17


def run(folder: Path, lowering: Lowering) -> Tables:
    """Needs about 8 GB and some minutes on two cores."""
    directory = folder / "smolvlm-256m"
    if not directory.exists():
        make_checkpoint(directory, SHAPES["smolvlm-256m"])
    reference = Reference.load(directory)
    variant, tables = Variant(lowering), Tables()
    question = Question("What does the picture show?", (picture(512, 512, 1),))
    prompt = reference.prompt(question, "picture of 17 tiles")
    _measure_functions(reference, directory, folder / "program", variant, prompt, tables)
    _measure_engine(reference, directory, Cache(folder / "cache"), variant, question, tables)
    return tables


def _measure_functions(
    reference: Reference,
    directory: Path,
    folder: Path,
    variant: Variant,
    prompt: Prompt,
    tables: Tables,
) -> None:
    size = Size(CAPACITY, slots=3, chunks=(CHUNK,), batches=(3,))
    start = time.monotonic()
    built: Built = build(directory, folder, variant, size)
    print(f"compiled and packed in {time.monotonic() - start:.1f} s", flush=True)
    subject, tolerated = Subject(built, open_program(built)), tolerance_of(built)
    label = ["smolvlm-256m", str(variant)]
    assert prompt.pixels is not None
    assert prompt.valid is not None
    some = Prompt(prompt.ids, prompt.pixels[:TILES], prompt.valid[:TILES])
    tables.add_tower(label, measure_tower(subject, reference, some, tolerated))
    rows = subject.rows(prompt)
    text = Prompt(text_ids(200, 49000, 1))
    for name, case, known in ((prompt.name, prompt, rows), ("long text", text, None)):
        _add_logits(reference, subject, case, known, name, tables)
    batch = [Prompt(text_ids(length, 49000, length)) for length in (9, 40, 70)]
    logits = [reference.logits(case) for case in batch]
    decoded = measure_batch(subject, batch, [1, 30, 45], logits, tolerated.logits)
    tables.add_decode(label, decoded)


def _add_logits(
    reference: Reference,
    subject: Subject,
    case: Prompt,
    rows: Array | None,
    name: str,
    tables: Tables,
) -> None:
    """Whole chunks and ragged ones."""
    tolerated, length = tolerance_of(subject.built), len(case.ids)
    expected = reference.logits(case)
    rounded = reference.with_cache("f16").logits(case)
    results = []
    for plan in (chunk_plan(length, CHUNK), chunk_plan(length, CHUNK, seed=5)):
        ours = teacher_forced(subject, case, plan, slot=1, rows=rows)
        results.append(compare_logits(ours, expected, tolerated.logits))
    alone = compare_logits(rounded, expected, tolerated.logits).max_rel
    lowering = subject.built.options.lowering
    label = ["smolvlm-256m", str(Variant(lowering))]
    tables.add_logits(label, name, results, alone)


def _measure_engine(
    reference: Reference,
    directory: Path,
    cache: Cache,
    variant: Variant,
    question: Question,
    tables: Tables,
) -> None:
    options = BuildOptions(lowering=variant.lowering, max_model_len=CAPACITY, max_num_seqs=3)
    ids = text_ids(60, 49000, 2)
    with Generator(directory, options, cache) as generator:
        jobs = [
            (generator.job(question), reference.prompt(question)),
            (text_job(ids), Prompt(ids)),
        ]
        found = generator.greedy([job for job, _ in jobs], STEPS)
        results = [
            followed(generator, reference, prompt, ours, STEPS)
            for ours, (_, prompt) in zip(found, jobs, strict=True)
        ]
    tables.add_greedy(["smolvlm-256m", str(variant)], results)
