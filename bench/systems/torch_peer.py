"""transformers on torch, eager, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.systems.base import Context, peak_pss_mib, run_worker

WORKER = "bench.systems.torch_worker"


@dataclass(frozen=True, slots=True)
class TorchPeer:
    context: Context
    dtype: Literal["f32", "bf16"]

    @property
    def name(self) -> str:
        return f"transformers {self.dtype}"

    @property
    def sections(self) -> frozenset[str]:
        return frozenset({"decode", "prefill", "image", "memory"})

    def prepare(self) -> None:
        pass

    def measure(self, section: str) -> dict[str, float]:
        context = self.context
        if section != "memory":
            return run_worker(
                WORKER, self._arguments(section), threads=context.threads,
                python=context.torch_python,
            )  # fmt: skip
        return {
            row: peak_pss_mib(
                [context.torch_python, "-m", WORKER, *self._arguments(row)],
                threads=context.threads,
            )
            for row in ("memory_text", "memory_image")
        }

    def _arguments(self, section: str) -> list[str]:
        context = self.context
        return [section, str(context.checkpoint), "--threads", str(context.threads),
                "--dtype", self.dtype]  # fmt: skip
