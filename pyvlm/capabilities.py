"""What a loaded model can do: the one predicate that reports and that admits.

Whatever /v1/models or doctor shows and whatever a request is checked against is this object.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.models.config import ModelConfig

MODALITIES = ("text", "image", "audio", "video")


@dataclass(frozen=True, slots=True)
class Capabilities:
    family: str
    modalities: tuple[str, ...]
    features: tuple[str, ...]
    image_formats: tuple[str, ...] = ()
    text_only_reason: str | None = None  # why a checkpoint with images is served as text

    def supports(self, modality: str) -> bool:
        return modality in self.modalities

    def require(self, modality: str) -> None:
        """Refuse input that this model does not take, before anything is read of it."""
        if self.supports(modality):
            return
        if modality == "image" and self.text_only_reason is not None:
            raise PyvlmError(
                f"this model takes no images: {self.text_only_reason}",
                code="model_unsupported",
                param="messages",
            )
        raise modality_unsupported(modality, self.modalities)

    def report(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "modalities": list(self.modalities),
            "features": list(self.features),
            "image_formats": list(self.image_formats),
        }


def capabilities(
    model: ModelConfig, *, has_chat_template: bool, image_formats: Collection[str]
) -> Capabilities:
    takes_images = model.vision is not None
    return Capabilities(
        family=model.family,
        modalities=("text", "image") if takes_images else ("text",),
        features=("chat", "completions") if has_chat_template else ("completions",),
        image_formats=tuple(image_formats) if takes_images else (),
        text_only_reason=model.text_only_reason,
    )


def modality_unsupported(modality: str, supported: Collection[str]) -> PyvlmError:
    return PyvlmError(
        f"{modality} input is not supported; this model takes {' and '.join(supported)}",
        code="modality_unsupported",
        param="messages",
    )
