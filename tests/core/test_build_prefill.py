"""The plan of a prompt arrives at the seam as it was made."""

from __future__ import annotations

import numpy as np
import pytest

from pyvlm import _core
from pyvlm.errors import PyvlmError
from pyvlm.media.transform import ImagePatches, TileGrid
from pyvlm.prefill import build_prefill
from pyvlm.prompt_plan import PromptPlan, plan_prompt
from pyvlm.sampling import SamplingParams
from tests.unit.prompting import image_prompt, tokenizer

TILED = TileGrid(1, 2)


def plan() -> PromptPlan:
    ids = tokenizer().encode("what<image>is")
    return plan_prompt(ids, [TILED], image_prompt(rows_per_tile=4))


def patches(value: float = 0.0) -> ImagePatches:
    return ImagePatches(
        np.full((3, 16, 12), value, np.float32), np.full((3, 2), 4, np.int32), TILED
    )


def test_counts_agree() -> None:
    prepared = build_prefill(
        plan(), [patches()], SamplingParams(seed=3, max_tokens=7), stop_token_ids=[1, 2]
    )
    assert isinstance(prepared, _core.PreparedPrefill)
    assert list(prepared.logical_ids) == plan().logical_ids.tolist()
    assert prepared.num_prompt_tokens == len(plan().logical_ids)
    assert prepared.num_positions == plan().num_positions
    assert (prepared.num_images, prepared.max_new_tokens) == (1, 7)


@pytest.mark.parametrize(
    ("images", "code"),
    [
        ([], "image_count"),
        ([patches(), patches()], "image_count"),
        ([patches(np.nan)], "non_finite"),
    ],
)
def test_the_seam_checks_again(images: list[ImagePatches], code: str) -> None:
    with pytest.raises(PyvlmError) as caught:
        build_prefill(plan(), images, SamplingParams(), stop_token_ids=[])
    assert caught.value.code == code


def test_neutral_sampling_is_neutral_on_both_sides() -> None:
    ours, native = SamplingParams(), _core.SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                 "presence_penalty", "frequency_penalty", "seed"):  # fmt: skip
        assert getattr(native, name) == getattr(ours, name)
