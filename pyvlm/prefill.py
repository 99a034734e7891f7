"""From a planned prompt and its pictures to PreparedPrefill: the one thing that an engine takes."""

from __future__ import annotations

from collections.abc import Sequence

from pyvlm import _core
from pyvlm.media.transform import ImagePatches
from pyvlm.prompt_plan import ImageSpan, PromptPlan, TextSpan
from pyvlm.sampling import SamplingParams


def build_prefill(
    plan: PromptPlan,
    images: Sequence[_core.ImageInput | ImagePatches],
    sampling: SamplingParams,
    *,
    stop_token_ids: Sequence[int],
    deadline_s: float | None = None,
) -> _core.PreparedPrefill:
    """The engine borrows the arrays of the images until it has read them."""
    return _core.PreparedPrefill(
        logical_ids=plan.logical_ids,
        segments=[_segment(span) for span in plan.spans],
        images=[_image(image) for image in images],
        image_token_id=-1 if plan.image_token_id is None else plan.image_token_id,
        sampling=_native_sampling(sampling),
        max_new_tokens=sampling.max_tokens,
        stop_token_ids=list(stop_token_ids),
        deadline_s=deadline_s,
    )


def _image(image: _core.ImageInput | ImagePatches) -> _core.ImageInput:
    if isinstance(image, ImagePatches):
        return _core.ImageInput.pixels(image.patches, image.valid)
    return image


def _segment(span: TextSpan | ImageSpan) -> _core.Segment:
    if isinstance(span, TextSpan):
        return _core.Segment.text(span.start, span.count)
    return _core.Segment.image(span.index, span.expanded_ids)


def _native_sampling(sampling: SamplingParams) -> _core.SamplingParams:
    return _core.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=list(sampling.logit_bias.items()),
        seed=sampling.seed,
        num_logprobs=sampling.num_logprobs,
    )
