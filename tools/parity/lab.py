"""Which checkpoints are compared in which variants; makes each of them once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pyvlm.cache import Cache
from tools.make_checkpoint import SHAPES, make_checkpoint
from tools.parity.bundles import Size, Variant, build, open_program
from tools.parity.cases import prompts
from tools.parity.prompts import Prompt
from tools.parity.reference import Array, Float, Reference, Weights
from tools.parity.subject import Subject

TINY = Path(__file__).parents[2] / "pyvlm" / "assets" / "tiny"

KERNELS_F16 = Variant("kernels", "f16", "f16")
KERNELS_F32 = Variant("kernels", "f32", "f32")
KERNELS_F16_F32KV = Variant("kernels", "f16", "f32")
CODEGEN_F16 = Variant("codegen", "f16", "f16")
CODEGEN_F32 = Variant("codegen", "f32", "f32")
KERNELS_INT8 = Variant("kernels", "int8", "f16")
KERNELS_INT8_F32KV = Variant("kernels", "int8", "f32")
CODEGEN_INT8_F32KV = Variant("codegen", "int8", "f32")
INT8 = (KERNELS_INT8, KERNELS_INT8_F32KV, CODEGEN_INT8_F32KV)

# Every shape under the default; the other variants where they differ in what they compute.
MATRIX: dict[str, tuple[Variant, ...]] = {
    "tiny": (KERNELS_F16, KERNELS_F32, KERNELS_F16_F32KV, CODEGEN_F16, CODEGEN_F32, *INT8),
    "reduced": (
        KERNELS_F16,
        KERNELS_F32,
        KERNELS_F16_F32KV,
        CODEGEN_F16,
        CODEGEN_F32,
        KERNELS_INT8,
        KERNELS_INT8_F32KV,
    ),
    "odd": (KERNELS_F16, KERNELS_F32, KERNELS_F16_F32KV, CODEGEN_F16, CODEGEN_F32, *INT8),
    "qwen2": (KERNELS_F16, KERNELS_F32, CODEGEN_F16, KERNELS_INT8),
    "untiled": (KERNELS_F16,),
    "untied": (KERNELS_F16, KERNELS_F32, KERNELS_INT8),
    "smolvlm-type": (KERNELS_F16,),
    "text": (KERNELS_F16,),
    "rope-linear": (KERNELS_F32,),
    "rope-dynamic": (KERNELS_F32,),
    "rope-llama3": (KERNELS_F32,),
    "rope-yarn": (KERNELS_F32,),
}
WITH_TOWER = ("tiny", "reduced", "odd", "qwen2", "untiled", "untied", "smolvlm-type")

# The generated code computes whole chunks and attends to whole buckets: smaller ones keep it fast.
SIZES = {
    "kernels": Size(capacity=512, slots=4, chunks=(512,), batches=(1, 4)),
    "codegen": Size(capacity=512, slots=4, chunks=(64,), batches=(1, 4)),
}


class Lab:
    """Makes checkpoints, references and programs under one folder, and keeps them."""

    def __init__(self, folder: Path, *, threads: int = 0) -> None:
        self._folder, self._threads = folder, threads
        self.checkpoint = cache(self._checkpoint)
        self.reference = cache(self._reference)
        self.subject = cache(self._subject)
        self.prompts = cache(self._prompts)
        self.expected = cache(self._expected)

    def bundle_cache(self) -> Cache:
        """Where the engine's bundles of these checkpoints go."""
        return Cache(self._folder / "cache")

    def _checkpoint(self, model: str) -> Path:
        if model == "tiny":
            return TINY
        return make_checkpoint(self._folder / model, SHAPES[model], seed=1)

    def _reference(self, model: str, weights: Weights) -> Reference:
        return Reference.load(self.checkpoint(model), weights=weights)

    def _subject(self, model: str, variant: Variant) -> Subject:
        folder = self._folder / "programs" / f"{model}-{variant}".replace(" ", "-")
        built = build(self.checkpoint(model), folder, variant, SIZES[variant.lowering])
        return Subject(built, open_program(built, self._threads))

    def _prompts(self, model: str) -> dict[str, Prompt]:
        return prompts(self.reference(model, "f32"))

    def _expected(self, model: str, weights: Weights, name: str, kv: Float = "f32") -> Array:
        """Logits of a prompt; `kv` is the reference's own cache."""
        reference = self.reference(model, weights).with_cache(kv)
        return reference.logits(self.prompts(model)[name])
