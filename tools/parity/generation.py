"""Greedy generations through the engine: submit, schedule, prefill in chunks, decode in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from pyvlm import _core
from pyvlm.build import BuildOptions, prepare_bundle
from pyvlm.cache import Cache
from pyvlm.frontend import Frontend, load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.transform import ImagePatches
from pyvlm.prefill import build_prefill
from pyvlm.prompt_plan import PromptPlan, TextSpan
from pyvlm.runtime import model_spec
from pyvlm.sampling import SamplingParams
from tools.parity.frontdoor import prepare
from tools.parity.prompts import Question

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    plan: PromptPlan
    images: Sequence[ImagePatches] = ()


def text_job(ids: NDArray[np.int32]) -> Job:
    return Job(PromptPlan(ids, (TextSpan(0, len(ids)),), None))


class Generator:
    """An engine on a bundle that `prepare_bundle` made, as the command line has it."""

    def __init__(
        self, model: Path, options: BuildOptions, cache: Cache, *, threads: int = 0
    ) -> None:
        self.bundle = prepare_bundle(model, options, cache=cache)
        self.frontend: Frontend = load_frontend(
            self.bundle.checkpoint_path, self.bundle.model, MediaPolicy()
        )
        program = _core.Program(
            _core.Device("local-task", threads),
            str(self.bundle.program_path),
            str(self.bundle.archive_path),
            model_spec(self.bundle.manifest),
        )
        self._engine = _core.Engine(program, _core.EngineOptions())

    def job(self, question: Question) -> Job:
        return Job(*prepare(self.frontend, question))

    def greedy(
        self, jobs: Sequence[Job], steps: int, stop: Sequence[int] = ()
    ) -> list[NDArray[np.int32]]:
        """All jobs at once; the ids of each, without the stop id that ended it."""
        sampling = SamplingParams(max_tokens=steps)
        prepared = [
            build_prefill(job.plan, job.images, sampling, stop_token_ids=stop) for job in jobs
        ]
        numbers = {self._engine.submit(item): index for index, item in enumerate(prepared)}
        tokens: list[list[int]] = [[] for _ in jobs]
        running = set(numbers)
        while running:
            for output in self._engine.wait_outputs(_POLL_S):
                if output.finish_reason == "error":
                    raise RuntimeError(f"{output.error_code}: {output.error_message}")
                tokens[numbers[output.seq_id]] += output.token_ids
                if output.finish_reason is not None:
                    running.discard(output.seq_id)
        return [np.array(found, np.int32) for found in tokens]

    def close(self) -> None:
        self._engine.shutdown()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
