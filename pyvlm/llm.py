"""The engine for synchronous callers: batches of prompts with pictures, or one streamed request.

    from pyvlm import LLM, SamplingParams

    with LLM("tiny") as llm:
        for output in llm.chat(["What colour is it?"] * 2, images=[["a.png"], ["b.png"]]):
            print(output.text)

It runs an AsyncEngine on a private event loop in a private thread: nothing is asked of the host,
whether it is a script without a main guard, standard input, a notebook or a test.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, cast

from pyvlm.batch_progress import batch_progress
from pyvlm.build import BuildOptions, Progress
from pyvlm.chat import Message, user_message
from pyvlm.engine import AsyncEngine
from pyvlm.engine_options import EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.loop_thread import LoopThread
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.source_files import read_image_files
from pyvlm.outputs import Delta, RequestOutput
from pyvlm.request import Embeddings, GenerationRequest, Prompt
from pyvlm.sampling import SamplingParams

ImageLike: TypeAlias = bytes | str | os.PathLike[str] | Embeddings  # encoded, or a file's name
Images: TypeAlias = Sequence[Sequence[ImageLike]] | Sequence[ImageLike]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams]
_IMAGE_TYPES = (bytes, str, os.PathLike, Embeddings)
_Task: TypeAlias = tuple[Prompt, Sequence[ImageLike], SamplingParams]
_NUM_READERS = 2


class LLM:
    """A loaded model. A context manager; may be used from several threads at once."""

    def __init__(
        self,
        model: str | Path = "tiny",
        *,
        build: BuildOptions | None = None,
        options: EngineOptions | None = None,
        policy: MediaPolicy | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Compiles the model first if need be, see `AsyncEngine.load`."""
        self.engine = AsyncEngine.load(
            model, build=build, options=options, policy=policy, progress=progress
        )
        self._thread = LoopThread("pyvlm-llm")
        self._readers = ThreadPoolExecutor(_NUM_READERS, "pyvlm-read")
        self._close = weakref.finalize(self, _close, self.engine, self._thread, self._readers)
        self._thread.call(self.engine.start())
        # More than the slots, so that pictures are prepared ahead; never more than are admitted.
        slots = self.engine.num_slots
        self._room = asyncio.Semaphore(slots + min(slots, self.engine.options.max_queued))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params | None = None,
        *,
        images: Images | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """One output per prompt, in their order.

        A prompt is trusted text with literal placeholders, logical ids, or messages. `images` has
        the pictures of each prompt; those of a single prompt may stand there as they are. A request
        that fails has its `error` set in its output, and the others go on; nothing is raised for
        it. `progress`: a bar on standard error, by default if that is a terminal.
        """
        return self._run(_as_prompts(prompts), sampling_params, images, progress)

    def chat(
        self,
        messages: str | Sequence[Message] | Sequence[str | Sequence[Message]],
        sampling_params: Params | None = None,
        *,
        images: Images | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """As `generate`, through the chat template.

        A conversation that is just a text is one user message: its pictures, then the text.
        """
        conversations = cast(Sequence[str | Sequence[Message]], _as_prompts(messages))
        pictures = _per_prompt(images, len(conversations))
        prompts = [
            [user_message(talk, len(shown))] if isinstance(talk, str) else talk
            for talk, shown in zip(conversations, pictures, strict=True)
        ]
        return self._run(prompts, sampling_params, pictures, progress)

    def stream(self, request: GenerationRequest) -> Generator[Delta, None, None]:
        """The deltas of one request. Closing the iterator, or any exception, cancels it."""
        deltas = self.engine.generate(request)
        try:
            while (delta := self._thread.call(_next(deltas))) is not None:
                yield delta
        finally:
            if not self._thread.is_stopped:  # else the loop closed it before it ended
                self._thread.start(_aclose(deltas))

    def close(self) -> None:
        """Ends what is unfinished. Idempotent; also happens at exit."""
        self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params | None,
        images: Images | None,
        progress: bool | None,
    ) -> list[RequestOutput]:
        count = len(prompts)
        pictures = _per_prompt(images, count)
        params = _per_request(sampling_params, count)
        requests = list(zip(prompts, pictures, params, strict=True))
        with batch_progress(count, progress) as advance:
            return self._thread.call(self._all(requests, advance))

    async def _all(
        self, requests: Sequence[_Task], advance: Callable[[], None]
    ) -> list[RequestOutput]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(request, advance)) for request in requests]
        return [task.result() for task in tasks]

    async def _one(self, request: _Task, advance: Callable[[], None]) -> RequestOutput:
        prompt, images, params = request
        deltas: list[Delta] = []
        error = None
        async with self._room:  # first come, first served
            try:
                pictures = await self._loaded(images)
                async for delta in self.engine.generate(
                    GenerationRequest(prompt, pictures, params)
                ):
                    deltas.append(delta)
            except PyvlmError as caught:
                error = caught
        advance()
        return _joined(deltas, error)

    async def _loaded(self, images: Sequence[ImageLike]) -> list[bytes | Embeddings]:
        """Files are read when it is the request's turn, so that not all are held at once, and in
        threads: whatever a disk takes, the loop goes on."""
        files = [Path(image) for image in images if isinstance(image, (str, os.PathLike))]
        data: list[bytes] = []
        if files:
            policy = self.engine.frontend.policy
            reading = partial(read_image_files, files, policy)
            data = await asyncio.get_running_loop().run_in_executor(self._readers, reading)
        read = iter(data)
        return [next(read) if isinstance(i, (str, os.PathLike)) else i for i in images]


async def _aclose(deltas: AsyncGenerator[Delta, None]) -> None:
    await deltas.aclose()


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta | None:
    return await anext(deltas, None)


def _close(engine: AsyncEngine, thread: LoopThread, readers: ThreadPoolExecutor) -> None:
    engine.shut_down()
    if thread.is_stopped:  # and in a child of fork, where the readers are not to be joined, either
        return
    thread.stop()
    readers.shutdown(wait=True)


def _joined(deltas: Sequence[Delta], error: PyvlmError | None) -> RequestOutput:
    last = deltas[-1] if deltas else Delta("", ())
    has_logprobs = last.logprobs is not None
    return RequestOutput(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        logprobs=tuple(p for d in deltas for p in d.logprobs or ()) if has_logprobs else None,
        finish_reason=last.finish_reason,
        usage=last.usage,
        timings=last.timings,
        error=error,
    )


def _as_prompts(given: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt or several: a text, ids and messages are one."""
    if isinstance(given, str) or (_is_list(given) and isinstance(given[0], (Integral, Message))):
        return [cast(Prompt, given)]
    if not isinstance(given, (list, tuple)) or any(isinstance(entry, dict) for entry in given):
        raise _invalid("prompts", "a prompt or a list of prompts; messages are pyvlm.chat.Message")
    return cast(Sequence[Prompt], given)


def _is_list(given: object) -> bool:
    return isinstance(given, (list, tuple)) and len(given) > 0


def _per_prompt(images: Images | None, count: int) -> Sequence[Sequence[ImageLike]]:
    if images is None:
        return [()] * count
    if not isinstance(images, (list, tuple)):
        raise _invalid("images", "a list")
    single = [isinstance(entry, _IMAGE_TYPES) for entry in images]
    if count == 1 and single and all(single):
        return [cast(Sequence[ImageLike], images)]
    if len(images) != count or any(single):
        raise PyvlmError(
            f"images must have one list of pictures for each of the {count} prompts; it has "
            f"{len(images)} entries, {sum(single)} of them single pictures",
            code="invalid_parameter",
            param="images",
        )
    pictures = cast(Sequence[Sequence[ImageLike]], images)
    for shown in pictures:
        if not isinstance(shown, (list, tuple)) or not all(
            isinstance(i, _IMAGE_TYPES) for i in shown
        ):
            raise _invalid("images", "lists of file names, bytes of picture files or Embeddings")
    return pictures


def _per_request(params: Params | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    given = params if isinstance(params, (list, tuple)) else [params]
    if not all(isinstance(entry, SamplingParams) for entry in given):
        raise _invalid("sampling_params", "SamplingParams, or a list of them")
    if len(given) != count:
        raise PyvlmError(
            f"there are {count} prompts, but {len(given)} sampling parameters",
            code="invalid_parameter",
            param="sampling_params",
        )
    return cast(Sequence[SamplingParams], given)


def _invalid(name: str, expected: str) -> PyvlmError:
    return PyvlmError(f"{name} must be {expected}", code="invalid_parameter", param=name)
