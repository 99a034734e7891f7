"""Arguments of the library: numbers of any kind are taken, anything else is refused by its name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyvlm.engine_options import EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.request import Embeddings, GenerationRequest
from pyvlm.sampling import SamplingParams

ROWS = np.zeros((2, 3), np.float32)


def test_scalars_of_numpy_are_numbers() -> None:
    given = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int16(3),
        seed=np.uint64(2**64 - 1),
        max_tokens=np.int64(7),
        num_logprobs=np.int8(2),
        logit_bias={np.int32(4): np.float16(-2)},
    )
    assert given == SamplingParams(
        temperature=0.5, top_k=3, seed=2**64 - 1, max_tokens=7, num_logprobs=2, logit_bias={4: -2.0}
    )
    kept = [given.temperature, given.top_k, given.seed, given.max_tokens, *given.logit_bias.items()]
    assert "np." not in repr(kept)
    request = GenerationRequest("x", deadline_s=np.float32(1.5))
    assert (request.deadline_s, type(request.deadline_s)) == (1.5, float)


@pytest.mark.parametrize(
    ("name", "make", "value"),
    [
        ("temperature", lambda: SamplingParams(temperature="x"), "x"),
        ("temperature", lambda: SamplingParams(temperature=np.array([1, 2])), "[1 2]"),
        ("top_p", lambda: SamplingParams(top_p=None), "None"),
        ("top_k", lambda: SamplingParams(top_k=None), "None"),
        ("seed", lambda: SamplingParams(seed=1.5), "1.5"),
        ("max_tokens", lambda: SamplingParams(max_tokens=np.bool_(True)), "True"),
        ("logit_bias", lambda: SamplingParams(logit_bias={"a": 1}), "a"),
        ("stop", lambda: SamplingParams(stop=5), "5"),
        ("stop", lambda: SamplingParams(stop=[5]), "[5]"),
        ("rows", lambda: Embeddings([1, 2]), "[1, 2]"),
        ("grid", lambda: Embeddings(ROWS, 5), "5"),
        ("images", lambda: GenerationRequest("x", 5), "5"),
        ("images", lambda: GenerationRequest("x", b"png"), "b'png'"),
        ("sampling", lambda: GenerationRequest("x", sampling={}), "{}"),
        ("deadline_s", lambda: GenerationRequest("x", deadline_s="x"), "x"),
        ("deadline_s", lambda: GenerationRequest("x", deadline_s=float("nan")), "nan"),
        ("deadline_s", lambda: GenerationRequest("x", deadline_s=10**400), "1000"),
        ("deadline_s", lambda: GenerationRequest("x", deadline_s=True), "True"),
    ],
)
def test_wrong_arguments_name_field_and_value(
    name: str, make: Callable[[], object], value: str
) -> None:
    with pytest.raises(PyvlmError) as caught:
        make()
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)
    assert f"not {value}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("max_tokens", lambda: SamplingParams(max_tokens=10**5000)),
        ("temperature", lambda: SamplingParams(temperature=-(10**5000))),
        ("stop", lambda: SamplingParams(stop=[10**5000])),
        ("deadline_s", lambda: GenerationRequest("x", deadline_s=10**5000)),
        ("images", lambda: GenerationRequest("x", 10**5000)),
        ("max_queued", lambda: EngineOptions(max_queued=10**5000)),
    ],
)
def test_integers_that_cannot_be_spelled(name: str, make: Callable[[], object]) -> None:
    """Python makes no text of more than 4300 digits."""
    with pytest.raises(PyvlmError, match="too many digits to show") as caught:
        make()
    assert (caught.value.code, caught.value.param) == ("invalid_parameter", name)
