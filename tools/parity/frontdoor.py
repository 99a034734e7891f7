"""The prompt as pyvlm's own front end makes it, in the form of the comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pyvlm.chat import user_message
from pyvlm.frontend import Frontend, load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.transform import ImagePatches
from pyvlm.models.parse import parse_config, read_config
from pyvlm.prompt_plan import ImageSpan, PromptPlan, plan_prompt
from tools.parity.prompts import Question


def frontend_of(directory: Path) -> Frontend:
    return load_frontend(directory, parse_config(read_config(directory)), MediaPolicy())


def prepare(frontend: Frontend, question: Question) -> tuple[PromptPlan, list[ImagePatches]]:
    """Through pyvlm's chat template, tokenizer, placeholder expansion and transform."""
    ids = frontend.chat_ids([user_message(question.text, len(question.images))])
    images = []
    for picture in question.images:
        assert frontend.transform is not None
        images.append(frontend.transform.apply(picture))
    return plan_prompt(ids, [image.grid for image in images], frontend.image_prompt), images


def expanded(plan: PromptPlan) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """[T]: what stands at each position of the cache."""
    parts = [
        span.expanded_ids
        if isinstance(span, ImageSpan)
        else plan.logical_ids[span.start : span.start + span.count]
        for span in plan.spans
    ]
    return np.concatenate(parts).astype(np.int32)
