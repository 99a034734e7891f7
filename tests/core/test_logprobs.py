"""Log probabilities of generated tokens, against a softmax of the program's own logits."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from small_model import prepare

from pyvlm import _core
from pyvlm.errors import PyvlmError


def generate(engine: object, prepared: object) -> tuple[list[int], list[object]]:
    engine.submit(prepared)
    tokens: list[int] = []
    logprobs: list[object] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for output in engine.wait_outputs(1.0):
            tokens += output.token_ids
            logprobs += output.logprobs
            if output.finish_reason is not None:
                assert output.finish_reason == "length", output.error_message
                return tokens, logprobs
    raise AssertionError("no end")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype("float64") - float(logits.max())
    return wide - math.log(np.exp(wide).sum())


def test_equal_the_softmax_of_the_raw_logits(bundle):
    prompt = [7, 8, 9, 20]
    sampling = _core.SamplingParams(
        temperature=3.0, seed=4, frequency_penalty=1.0, logit_bias=[(5, 4.0)], num_logprobs=6
    )
    with bundle.engine() as engine:
        tokens, logprobs = generate(engine, prepare(prompt, sampling=sampling))
    assert [entry.token_id for entry in logprobs] == tokens
    for index, entry in enumerate(logprobs):
        expected = log_softmax(bundle.logits([*prompt, *tokens[:index]]))
        assert entry.logprob == pytest.approx(expected[tokens[index]], abs=2e-3)
        assert [logprob for _, logprob in entry.top] == pytest.approx(
            sorted(expected, reverse=True)[:6], abs=2e-3
        )
        assert len({token for token, _ in entry.top}) == 6
        for token, logprob in entry.top:
            assert logprob == pytest.approx(expected[token], abs=2e-3)


def test_greedy_token_is_the_first_of_top_and_nothing_else_changes(bundle):
    prompt = [7, 8, 9]
    with bundle.engine() as engine:
        plain, none = generate(engine, prepare(prompt))
        tokens, logprobs = generate(
            engine, prepare(prompt, sampling=_core.SamplingParams(num_logprobs=1))
        )
        _, alone = generate(engine, prepare(prompt, sampling=_core.SamplingParams(num_logprobs=0)))
    assert none == []
    assert tokens == plain
    for token, entry, bare in zip(tokens, logprobs, alone, strict=True):
        assert entry.top == [(token, entry.logprob)]
        assert (bare.token_id, bare.logprob, bare.top) == (token, entry.logprob, [])


@pytest.mark.parametrize("number", [-1, 21, 2**70])
def test_count_is_checked(number):
    with pytest.raises(PyvlmError) as caught:
        _core.SamplingParams(num_logprobs=number)
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", "num_logprobs")
