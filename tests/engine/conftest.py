"""The embedded model, compiled once, and engines over it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from pyvlm import _core
from pyvlm.build import BuildOptions, prepare_bundle
from pyvlm.bundle import Bundle
from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.frontend import load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.picture_stage import preprocessor_of, row_cache_bytes
from pyvlm.runtime import open_program
from tests.engine.bench import HeldPreprocessor

Open = Callable[..., AsyncEngine]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if "PYVLM_CACHE_DIR" in os.environ:  # one that is kept between runs
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYVLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def bundle(cache: None) -> Bundle:
    del cache
    return prepare_bundle("tiny", BuildOptions(max_model_len=256, max_num_seqs=4))


@pytest.fixture(scope="session")
def program(bundle: Bundle) -> _core.Program:
    """Loaded once: engines share it, each has a cache of its own."""
    return open_program(bundle, 2)


@pytest.fixture
def open_engine(bundle: Bundle, program: _core.Program) -> Open:
    """An engine that is not started, see `engine_over`."""
    return partial(engine_over, bundle, program)


def engine_over(
    bundle: Bundle,
    program: _core.Program,
    *,
    faults: Sequence[object] = (),
    hold: bool = False,
    policy: MediaPolicy | None = None,
    runner: _core.Runner | None = None,
    **options: object,
) -> AsyncEngine:
    """`faults` strike in the runner; `hold` holds pictures back."""
    chosen = replace(EngineOptions(check_invariants=True), **options)
    frontend = load_frontend(bundle.checkpoint_path, bundle.model, policy or MediaPolicy())
    preprocessor = preprocessor_of(bundle, chosen, frontend.policy)
    assert preprocessor is not None
    runner = runner or _core.IreeRunner(program)
    if faults:
        from pyvlm import _core_testing

        runner = _core_testing.FaultRunner(runner, list(faults))
    native = _core.Engine(
        runner,
        _core.EngineOptions(
            step_budget_ms=chosen.step_budget_ms,
            max_queued=chosen.max_queued,
            check_invariants=True,
            image_cache_bytes=row_cache_bytes(bundle, chosen),
        ),
    )
    stage = HeldPreprocessor(preprocessor) if hold else preprocessor
    return AsyncEngine(bundle, frontend, native, stage, chosen)
