"""An event loop on a thread of its own, for callers that are not asynchronous themselves.

Works beside any loop of the caller's, in a notebook for example, and touches no signal handler.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from pyvlm.errors import PyvlmError

T = TypeVar("T")


class LoopThread:
    """`stop` it in the end. Any thread but its own may wait for it.

    A child of fork has the loop without its thread, and the loop's selector and wake-up socket are
    the parent's, too: there it is not stopped but left alone.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a host which forgets to stop it can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._loop.is_closed() or os.getpid() != self._pid

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Does not wait, so it may be called amid anything, by a finalizer for example."""
        if self.is_stopped:
            work.close()
            require_own_process(self._pid)
            raise _stopped()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Whatever interrupts the wait, Ctrl-C too, cancels the work."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise _stopped() from None
        finally:
            future.cancel()

    def stop(self) -> None:
        """Cancels what is left and ends the thread. Idempotent."""
        if self.is_stopped:
            return
        if threading.current_thread() is self._thread:
            self._loop.stop()
            return
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def require_own_process(pid: int) -> None:
    """Raises `engine_dead` in a child of the process `pid`, which has none of its threads."""
    if os.getpid() != pid:
        raise PyvlmError(
            f"the engine belongs to process {pid}, from which this one was forked: load the model "
            "again here",
            code="engine_dead",
        )


def _stopped() -> PyvlmError:
    return PyvlmError("the engine was shut down", code="draining")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
