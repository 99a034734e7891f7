"""pyvlm, through its engine: sampling and scheduling are inside what is timed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from bench.systems.base import Context, peak_pss_mib, run_worker

SLOTS, SLOT_POSITIONS = 8, 2048  # of the server
WORKER = "bench.systems.ours_worker"


@dataclass(frozen=True, slots=True)
class Ours:
    context: Context
    weights: Literal["f16", "f32", "int8"] = "f16"

    @property
    def name(self) -> str:
        return f"pyvlm {self.weights}"

    @property
    def sections(self) -> frozenset[str]:
        return frozenset({"decode", "prefill", "image", "memory", "load", "compile", "serve"})

    def prepare(self) -> None:
        """Also what the servers will want, so that none compiles when it starts."""
        self._work("prepare")
        for path in (self.context.checkpoint, self.context.untiled):
            arguments = ["prepare", str(path), "--capacity", str(SLOT_POSITIONS), *self._weights]
            run_worker(WORKER, arguments, threads=self.context.threads)

    def server_command(self, port: int, *, untiled: bool) -> list[str]:
        """As many cache positions as llama-server has."""
        path = self.context.untiled if untiled else self.context.checkpoint
        return [
            sys.executable, "-m", "pyvlm.cli.main", "serve", str(path), "--port", str(port),
            "--threads", str(self.context.threads), *self._weights,
            "--max-num-seqs", str(SLOTS), "--max-model-len", str(SLOT_POSITIONS),
            "--image-cache-bytes", str(256 << 20),
        ]  # fmt: skip

    def measure(self, section: str) -> dict[str, float]:
        if section == "memory":
            return self._memory()
        return self._work(section)

    def _memory(self) -> dict[str, float]:
        values = {"memory_imports": self._work("imports")["memory_imports"]}
        for name in ("memory_text", "memory_image"):
            command = [sys.executable, "-m", WORKER, *self._arguments(name)]
            values[name] = peak_pss_mib(command, threads=self.context.threads)
        return values

    def _work(self, section: str) -> dict[str, float]:
        return run_worker(WORKER, self._arguments(section), threads=self.context.threads)

    def _arguments(self, section: str) -> list[str]:
        path = self.context.untiled if section == "memory_image" else self.context.checkpoint
        return [section, str(path), "--threads", str(self.context.threads), *self._weights]

    @property
    def _weights(self) -> list[str]:
        """As the worker and `pyvlm serve` both take it."""
        return ["--quantize", "int8"] if self.weights == "int8" else ["--dtype", self.weights]
