"""One model in this process, one generation at a time: what the command line runs on.

The path is the server's: plan the prompt, check the capacity, preprocess, PreparedPrefill, submit,
pull outputs, detokenize, match stop strings.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from pyvlm import _core
from pyvlm.build import BuildOptions, Progress, prepare_bundle
from pyvlm.bundle import Bundle
from pyvlm.chat import Message
from pyvlm.errors import PyvlmError
from pyvlm.frontend import Frontend, load_frontend
from pyvlm.generation import TextStream
from pyvlm.media.decode import admit_images
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.preprocess import preprocess_image
from pyvlm.prefill import build_prefill
from pyvlm.prompt_plan import check_capacity, plan_prompt
from pyvlm.runtime import model_spec, open_engine
from pyvlm.sampling import SamplingParams

__all__ = ["Generation", "GenerationRequest", "Session", "load_session", "model_spec"]

_POLL_S = 0.1  # how long a Ctrl-C may wait while the engine is silent


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt_tokens are logical: one per image. image_positions are cache positions, with
    markers."""

    prompt_tokens: int
    completion_tokens: int
    image_positions: int


@dataclass(slots=True)
class Timings:
    """Seconds."""

    load: float = 0.0
    preprocess: float = 0.0
    encode: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    num_decoded: int = 0  # tokens after the first

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self.num_decoded / self.decode if self.num_decoded and self.decode else None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Messages for the chat template, or a raw prompt with literal placeholders."""

    prompt: Sequence[Message] | str
    images: Sequence[bytes] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Session:
    """Owns the engine; close it, or use it as a context manager."""

    def __init__(self, bundle: Bundle, *, num_threads: int = 0, policy: MediaPolicy) -> None:
        start = time.monotonic()
        self.bundle = bundle
        self.frontend: Frontend = load_frontend(bundle.checkpoint_path, bundle.model, policy)
        self.engine = open_engine(bundle, num_threads)
        self._last: weakref.ref[Generation] | None = None
        self.load_s = time.monotonic() - start

    @property
    def capacity(self) -> int:
        return self.bundle.manifest.kv.capacity

    def generate(self, request: GenerationRequest) -> Generation:
        """Validates and queues; the text comes from iterating over the result.

        One at a time: outputs of two would be taken from the engine by whichever asks first.
        """
        last = self._last() if self._last is not None else None
        if last is not None and last.is_open:
            raise PyvlmError(
                "the session's last generation is still open; finish or close it first",
                code="queue_full",
            )
        generation = Generation(self, request)
        self._last = weakref.ref(generation)
        return generation

    def close(self) -> None:
        self.engine.shutdown()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Generation:
    """Iterate once for the pieces of text; then finish_reason, usage and timings are known.

    Leaving the iteration early, by an exception or by closing it, cancels the sequence; so does
    `close`, and dropping the object.
    """

    def __init__(self, session: Session, request: GenerationRequest) -> None:
        self._engine = session.engine
        self.timings = Timings(load=session.load_s)
        self.finish_reason: str | None = None
        self._stream = TextStream(session.frontend.tokenizer, request.sampling.stop)
        prepared = self._prepare(session, request)
        self._seq_id = self._engine.submit(prepared)
        # Alive while the sequence may be in the engine; a call cancels it, once.
        self._cancel = weakref.finalize(self, self._engine.cancel, self._seq_id)
        self._cancel.atexit = False

    @property
    def is_open(self) -> bool:
        return self._cancel.alive

    def close(self) -> None:
        """Cancels what is not finished."""
        if self.is_open:
            self._cancel()
            self.finish_reason = self.finish_reason or "cancelled"

    @property
    def usage(self) -> Usage:
        return Usage(self._prompt_tokens, self._stream.num_tokens, self._image_positions)

    def __iter__(self) -> Iterator[str]:
        try:
            while self.finish_reason is None:
                for output in self._engine.wait_outputs(_POLL_S):
                    if output.seq_id == self._seq_id and self.finish_reason is None:
                        yield from self._take(output)
        finally:
            if self.finish_reason is None or self._stream.stopped:
                self.close()
            else:
                self._cancel.detach()

    def _prepare(self, session: Session, request: GenerationRequest) -> _core.PreparedPrefill:
        frontend, images = session.frontend, request.images
        if images:
            frontend.capabilities.require("image")
        headers = admit_images(images, frontend.policy)
        transform = frontend.transform
        grids = [transform.grid(*h.upright) for h in headers] if transform else []
        plan = plan_prompt(_logical_ids(frontend, request), grids, frontend.image_prompt)
        check_capacity(plan, request.sampling.max_tokens, session.capacity)
        start = time.monotonic()
        patches = [
            preprocess_image(data, header, transform, index)
            for index, (data, header) in enumerate(zip(images, headers, strict=True))
            if transform is not None
        ]
        self.timings.preprocess = time.monotonic() - start
        self._prompt_tokens = len(plan.logical_ids)
        self._image_positions = plan.num_image_positions
        return build_prefill(
            plan, patches, request.sampling, stop_token_ids=frontend.stop_token_ids
        )

    def _take(self, output: _core.TokenOutput) -> Iterator[str]:
        if text := self._stream.push(output.token_ids):
            yield text
        self._note_times(output)
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif output.finish_reason == "error":
            self.finish_reason = "error"
            raise PyvlmError(
                output.error_message or "the generation failed",
                code=output.error_code or "engine_failed",
            )
        elif output.finish_reason is not None:
            if text := self._stream.finish():
                yield text
            self.finish_reason = "stop" if self._stream.stopped else output.finish_reason

    def _note_times(self, output: _core.TokenOutput) -> None:
        self.timings.encode = output.encode_us / 1e6
        self.timings.prefill = output.prefill_us / 1e6
        self.timings.decode = output.decode_us / 1e6
        self.timings.num_decoded = max(0, output.num_generated - 1)


def load_session(
    model: str | Path,
    options: BuildOptions | None = None,
    *,
    num_threads: int = 0,
    policy: MediaPolicy | None = None,
    progress: Progress | None = None,
) -> Session:
    """Compiles the model first if its bundle is not in the cache."""
    bundle = prepare_bundle(model, options, progress)
    return Session(bundle, num_threads=num_threads, policy=policy or MediaPolicy())


def _logical_ids(frontend: Frontend, request: GenerationRequest) -> list[int]:
    if isinstance(request.prompt, str):
        return frontend.text_ids(request.prompt)
    return frontend.chat_ids(request.prompt)
