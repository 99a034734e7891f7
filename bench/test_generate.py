"""Whole generations through the library: prompt, picture, encode, prefill, decode, text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.conftest import CAPACITY, Timed
from pyvlm import LLM, SamplingParams
from pyvlm.bench.pictures import random_jpeg
from pyvlm.build import BuildOptions
from pyvlm.engine_options import EngineOptions
from pyvlm.models.config import Quantize
from pyvlm.outputs import RequestOutput

PROMPT, TOKENS = 128, 32


@pytest.fixture(scope="module")
def llm(checkpoint: Path, num_threads: int, quantize: Quantize) -> Iterator[LLM]:
    build = BuildOptions(quantize=quantize, max_model_len=CAPACITY, max_num_seqs=8)
    with LLM(checkpoint, build=build, options=EngineOptions(num_threads=num_threads)) as llm:
        yield llm


def texts(count: int) -> list[list[int]]:
    """Prompts as ids: every checkpoint has them."""
    return np.random.default_rng(0).integers(10, 250, (count, PROMPT)).tolist()


def check(outputs: list[RequestOutput], expected: list[RequestOutput]) -> None:
    for output, reference in zip(outputs, expected, strict=True):
        assert output.error is None
        assert output.token_ids == reference.token_ids


@pytest.mark.benchmark(group="generate, 128 ids, at most 32 tokens")
@pytest.mark.parametrize("batch", [1, 8])
def test_text(llm: LLM, timed: Timed, batch: int) -> None:
    prompts, params = texts(batch), SamplingParams(max_tokens=TOKENS)
    alone = [llm.generate([prompt], params)[0] for prompt in prompts]
    check(llm.generate(prompts, params), alone)  # together they say what each says alone
    threads = llm.engine.options.num_threads
    made = sum(len(output.token_ids) for output in alone)
    timed(lambda: llm.generate(prompts, params), rounds=5, warmup=1, threads=threads, dtype="f16",
          work=made, unit="tokens", batch=batch)  # fmt: skip


@pytest.mark.benchmark(group="generate about a picture of 512 x 512, at most 8 tokens")
def test_picture(llm: LLM, timed: Timed) -> None:
    pictures = [random_jpeg(np.random.default_rng(seed), 512, 512) for seed in range(2)]
    params = SamplingParams(max_tokens=8)
    question = ["What colour is it?"]
    first = llm.chat(question, params, images=[pictures[:1]])
    check(llm.chat(question, params, images=[pictures[:1]]), first)
    usage = first[0].usage
    assert usage is not None
    assert usage.image_positions > 0
    timed(lambda: llm.chat(question, params, images=[pictures[1:]]), rounds=3, warmup=1,
          threads=llm.engine.options.num_threads, dtype="f16", work=1, unit="requests",
          image_positions=usage.image_positions)  # fmt: skip
