"""From the engine's outbox to whoever waits for a sequence: one thread pulls, the loop hands out.

Everything but the pulling happens on the event loop's thread, so nothing here needs a lock. Each
batch of outputs costs the loop one callback.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyvlm import _core
from pyvlm.errors import PyvlmError

_log = logging.getLogger("pyvlm.engine")

_WAIT_S = 3600.0  # the engine's end wakes the thread up

OnFirst: TypeAlias = Callable[["_core.TokenOutput | None"], None]


class Channel:
    """The outputs of one sequence, for one consumer.

    `on_first` hears of the first of them as it comes, consumed or not; of None if none came before
    the engine ended.
    """

    def __init__(self, on_first: OnFirst | None = None) -> None:
        self._on_first = on_first
        self._outputs: list[_core.TokenOutput] = []
        self._error: PyvlmError | None = None
        self._ready = asyncio.Event()

    def put(self, output: _core.TokenOutput) -> None:
        self._outputs.append(output)
        self._tell(output)
        self._ready.set()

    def fail(self, error: PyvlmError) -> None:
        self._error = error
        self._tell(None)
        self._ready.set()

    async def take(self) -> list[_core.TokenOutput]:
        """What has come since the last call, at least one output; raises what ended the engine."""
        await self._ready.wait()
        self._ready.clear()
        outputs, self._outputs = self._outputs, []
        if not outputs and self._error is not None:
            self._ready.set()
            raise self._error
        return outputs

    def _tell(self, output: _core.TokenOutput | None) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first(output)


class OutputRouter:
    """Owns the thread that pulls. A sequence is open from `open` until its last output is here."""

    def __init__(self, engine: _core.Engine, on_end: Callable[[], None]) -> None:
        """`on_end` is called on the loop's thread after sequences have ended."""
        self._engine = engine
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._channels: dict[int, Channel] = {}
        # Outputs may overtake the news of their sequence's id.
        self._early: dict[int, list[_core.TokenOutput]] = {}
        self._failure: PyvlmError | None = None
        # A daemon, because a host may end without closing; it is joined at exit all the same.
        self._thread = threading.Thread(target=self._pull, name="pyvlm-outputs", daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        return len(self._channels)

    def open(self, seq_id: int, on_first: OnFirst | None = None) -> Channel:
        """To be called once for every id that `submit` gave, wanted or not."""
        channel = self._channels[seq_id] = Channel(on_first)
        for output in self._early.pop(seq_id, ()):
            self._hand_out(output)
        if self._failure is not None and seq_id in self._channels:
            self._channels.pop(seq_id).fail(self._failure)
        return channel

    def join(self) -> None:
        """Waits for the thread; the engine must have been shut down before."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _pull(self) -> None:
        while True:
            try:
                outputs = self._engine.wait_outputs(_WAIT_S)
            except PyvlmError as error:
                self._call(self._stop, error)
                return
            except Exception:
                # Nobody pulls any more, so nobody may wait: a running engine would be worse.
                _log.exception("the engine's outputs cannot be taken")
                self._engine.shutdown()
                self._call(self._stop, PyvlmError("the engine stopped", code="engine_dead"))
                return
            if outputs:
                self._call(self._deliver, outputs)

    def _call(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return

    def _deliver(self, outputs: Sequence[_core.TokenOutput]) -> None:
        for output in outputs:
            self._hand_out(output)
        if any(output.finish_reason is not None for output in outputs):
            self._on_end()

    def _hand_out(self, output: _core.TokenOutput) -> None:
        channel = self._channels.get(output.seq_id)
        if channel is None:
            self._early.setdefault(output.seq_id, []).append(output)
            return
        channel.put(output)
        if output.finish_reason is not None:
            del self._channels[output.seq_id]

    def _stop(self, error: PyvlmError) -> None:
        """Sequences that are still open lost their last output with the engine."""
        self._failure = error
        for channel in self._channels.values():
            channel.fail(error)
        self._channels.clear()
        self._on_end()
