"""The thread that pulls outputs: whatever ends it, nobody waits for ever."""

from __future__ import annotations

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.routing import OutputRouter
from tests.engine.bench import run

pytestmark = pytest.mark.timeout(120)


class BrokenEngine:
    """Gives no outputs but an exception that nobody expects."""

    def __init__(self) -> None:
        self.is_shut_down = False

    def wait_outputs(self, timeout_s: float) -> list[object]:
        raise MemoryError(timeout_s)

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_an_unexpected_exception_ends_the_engine_and_all_who_wait() -> None:
    async def work() -> None:
        engine, ended = BrokenEngine(), []
        router = OutputRouter(engine, lambda: ended.append(True))
        channel = router.open(1)
        with pytest.raises(PyvlmError) as caught:
            await channel.take()
        assert caught.value.code == "engine_dead"
        with pytest.raises(PyvlmError):
            await router.open(2).take()
        assert engine.is_shut_down
        assert ended == [True]
        assert router.num_open == 0
        router.join()

    run(work())
