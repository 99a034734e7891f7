"""The engine as asyncio sees it: many requests at once, each an async generator of deltas.

One path for server, library and command line. What runs where: requests are planned and submitted
in one thread, pictures preprocessed by the preprocessor, outputs pulled by one thread; the event
loop only passes on. No signal handler is installed, and nothing is kept after `close`.

Order. Image requests enter the engine in the order of their arrival, texts as soon as they are
tokenised; from there on the native scheduler's bound against starvation holds.

Company. What a sequence draws is a function of its own logits, its parameters and its seed, and
the native kernels compute each row of a batch by itself in a fixed order. So with those kernels the
same request gives the same tokens alone and in company, greedy or with a seed. Generated code may
round another way in another batch size: there only clear greedy choices are promised.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from pyvlm import _core
from pyvlm.build import BuildOptions, Progress, prepare_bundle
from pyvlm.bundle import Bundle
from pyvlm.capabilities import Capabilities
from pyvlm.deltas import DeltaStream, PromptCounts
from pyvlm.engine_options import EngineOptions, EngineSnapshot
from pyvlm.errors import PyvlmError
from pyvlm.frontend import Frontend, load_frontend
from pyvlm.image_key import ImageKeys
from pyvlm.intake import Arrival, Intake
from pyvlm.loop_thread import require_own_process
from pyvlm.media.lease import LeaseInfo
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.preprocessor import Preprocessor
from pyvlm.memory import check_memory
from pyvlm.outputs import Delta
from pyvlm.picture_stage import preprocessor_of, row_cache_bytes, slab_bytes
from pyvlm.preparation import RequestPlan
from pyvlm.request import GenerationRequest
from pyvlm.routing import OutputRouter
from pyvlm.runtime import open_engine

__all__ = ["AsyncEngine", "EngineOptions", "EngineSnapshot"]


class AsyncEngine:
    """Load it anywhere, then `start` it on the event loop that is to use it.

    An async context manager. Without `close` everything is still shut down at exit, or when the
    object is dropped. A child of fork has no use of it: `engine_dead`; there nothing is shut down.
    """

    def __init__(
        self,
        bundle: Bundle,
        frontend: Frontend,
        native: _core.Engine,
        preprocessor: Preprocessor | None,
        options: EngineOptions,
        *,
        load_s: float = 0.0,
    ) -> None:
        """Takes over the native engine, and the preprocessor, not started yet. See `load`."""
        self.bundle = bundle
        self.frontend = frontend
        self.options = options
        self.load_s = load_s
        self._native = native
        self._preprocessor = preprocessor
        self._intake: Intake | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._end: weakref.finalize[..., object] = weakref.finalize(
            self, _end, self._pid, native, preprocessor, None, None
        )

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        build: BuildOptions | None = None,
        options: EngineOptions | None = None,
        policy: MediaPolicy | None = None,
        progress: Progress | None = None,
    ) -> AsyncEngine:
        """Compiles the model first if its bundle is not in the cache. Blocks, perhaps minutes."""
        options, policy = options or EngineOptions(), policy or MediaPolicy()
        bundle = prepare_bundle(model, build, progress)
        start = time.monotonic()
        slab = slab_bytes(bundle, options, policy)
        rows = row_cache_bytes(bundle, options)
        need = replace(bundle.memory_need(), slab=slab, image_cache=rows)
        check_memory(need)
        frontend = load_frontend(bundle.checkpoint_path, bundle.model, policy)
        native = open_engine(bundle, options)
        preprocessor = preprocessor_of(bundle, options, policy)
        load_s = time.monotonic() - start
        return cls(bundle, frontend, native, preprocessor, options, load_s=load_s)

    @property
    def capacity(self) -> int:
        """Cache positions of one sequence, prompt and answer together."""
        return self._native.capacity

    @property
    def num_slots(self) -> int:
        """Sequences that run at once."""
        return self.bundle.manifest.kv.num_slots

    @property
    def capabilities(self) -> Capabilities:
        return self.frontend.capabilities

    @property
    def is_alive(self) -> bool:
        """Whether requests can be served: started, not closed, and every stage runs."""
        if not self._end.alive or self._intake is None:
            return False
        stage = self._preprocessor
        return self._native.stats().is_alive and (stage is None or stage.is_alive)

    async def start(self) -> None:
        """Binds the engine to the running loop. Returns when requests can be served."""
        if self._loop is not None or not self._end.alive:
            raise PyvlmError("the engine was started before", code="invalid_parameter")
        self._loop = asyncio.get_running_loop()
        preprocessor, transform = self._preprocessor, self.frontend.transform
        if preprocessor is not None:
            await _in_own_thread(preprocessor.start)
        caches = transform is not None and self.options.image_cache_bytes > 0
        keys = ImageKeys(self.bundle, transform) if transform and caches else None
        executor = ThreadPoolExecutor(1, "pyvlm-prepare")
        intake = Intake(self._native, self.frontend, preprocessor, keys, self.options, executor)
        self._end.detach()
        self._end = weakref.finalize(
            self, _end, self._pid, self._native, preprocessor, executor, intake.router
        )
        self._intake = intake

    async def close(self) -> None:
        """Ends what is unfinished: its consumers get `draining`. Idempotent."""
        if self._intake is not None:
            self._intake.refuse(PyvlmError("the engine was shut down", code="draining"))
            self._intake.abort()
        await _in_own_thread(self.shut_down)

    def shut_down(self) -> None:
        """`close` for any thread but the loop's, where no loop can be waited for. Idempotent."""
        self._end()

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new requests and waits for the others; whether all of them have finished."""
        if self._intake is None:
            return True
        self._intake.refuse(PyvlmError("the engine is being shut down", code="draining"))
        try:
            async with asyncio.timeout(timeout_s):
                await self._intake.idle()
        except TimeoutError:
            return False
        return True

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """The request arrives with the first `anext`; whatever is wrong with it raises there.

        Leaving the iteration early, by `aclose` or by cancelling the task, cancels the request
        wherever it is: jobs, leases, sequence and slot are given back within a step.
        """
        intake = self._running()
        arrival = intake.open(request)
        try:
            plan = await intake.admit(arrival)
            deltas = self._deltas(arrival, plan)
            if arrival.channel is None:
                yield deltas.nothing(arrival.timings)
                return
            while True:
                for output in await arrival.channel.take():
                    delta = deltas.push(output, arrival.timings)
                    if delta is not None:
                        yield delta
                        if delta.finish_reason is not None:
                            return
        finally:
            intake.close(arrival)

    def stats(self) -> EngineSnapshot:
        """Any thread."""
        intake, preprocessor = self._started(), self._preprocessor
        return EngineSnapshot(
            native=self._native.stats(),
            pool=None if preprocessor is None else preprocessor.stats(),
            num_open=intake.num_open,
            num_preparing=intake.num_preparing,
            num_in_order=intake.num_in_order,
            queued_bytes=intake.queued_bytes,
            is_draining=intake.is_draining,
        )

    def leases(self) -> list[LeaseInfo]:
        """Memory of pictures between their arrival and their encoding, with its owners. Any
        thread."""
        self._started()
        return [] if self._preprocessor is None else self._preprocessor.leases()

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _started(self) -> Intake:
        require_own_process(self._pid)
        if self._intake is None:
            raise PyvlmError("the engine is not started", code="loading")
        return self._intake

    def _running(self) -> Intake:
        intake = self._started()
        if asyncio.get_running_loop() is not self._loop:
            raise PyvlmError(
                "the engine was started on another event loop", code="invalid_parameter"
            )
        return intake

    def _deltas(self, arrival: Arrival, plan: RequestPlan) -> DeltaStream:
        prompt = plan.prompt
        counts = PromptCounts(len(prompt.logical_ids), prompt.num_image_positions)
        return DeltaStream(
            self.frontend.tokenizer, arrival.request.sampling, counts, arrival.arrived
        )


def _end(
    pid: int,
    native: _core.Engine,
    preprocessor: Preprocessor | None,
    executor: ThreadPoolExecutor | None,
    router: OutputRouter | None,
) -> None:
    """Any thread but those that it ends. The engine first: its end wakes the puller.

    Threads and worker processes are of the process that started them: no other ends them.
    """
    if os.getpid() != pid:
        return
    native.shutdown()
    if preprocessor is not None:
        preprocessor.close()
    if executor is not None:
        executor.shutdown(wait=True)
    if router is not None:
        router.join()


async def _in_own_thread(function: Callable[[], object]) -> None:
    """In a thread that ends with the call, unlike those of the loop's own executor."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, None)

    thread = threading.Thread(target=run, name="pyvlm-call")
    thread.start()
    await asyncio.shield(done)
    thread.join()
