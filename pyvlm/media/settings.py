"""The transform of a checkpoint, from whichever of its files holds the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.media.transform import ImageTransform, transform_from_config
from pyvlm.models.config import VisionConfig

_IMAGE_PROCESSORS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")


def load_transform(
    read: Callable[[str], Mapping[str, Any]], vision: VisionConfig
) -> ImageTransform:
    """`read` gives the object in a side file, empty if the file is absent."""
    config = read("preprocessor_config.json")
    if not config:
        nested = read("processor_config.json").get("image_processor")
        config = nested if isinstance(nested, Mapping) else {}
    if not config:
        raise PyvlmError(
            "the model takes images but has no preprocessor_config.json", code="model_invalid"
        )
    kind = str(config.get("image_processor_type", ""))
    if kind.removesuffix("Fast").removesuffix("Pil") not in _IMAGE_PROCESSORS:
        raise PyvlmError(
            f"preprocessor_config.json: image_processor_type {kind!r} is not one of "
            f"{', '.join(_IMAGE_PROCESSORS)}",
            code="model_unsupported",
        )
    return transform_from_config(config, image_size=vision.image_size, patch_size=vision.patch_size)
