"""Engines of the embedded model that differ from what `AsyncEngine.load` makes."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyvlm import _core
from pyvlm.build import prepare_bundle
from pyvlm.bundle import Bundle
from pyvlm.engine import AsyncEngine, EngineOptions
from pyvlm.frontend import load_frontend
from pyvlm.media.policy import MediaPolicy
from pyvlm.picture_stage import preprocessor_of
from pyvlm.runtime import open_program

OPTIONS = EngineOptions(check_invariants=True)


def tiny_runner() -> _core.Runner:
    return _core.IreeRunner(open_program(prepare_bundle("tiny")))


def engine_over(runner: _core.Runner, side_files: Path | None = None) -> AsyncEngine:
    """Not started. `side_files`: a directory with the template and the tokenizer to use."""
    bundle, policy = prepare_bundle("tiny"), MediaPolicy()
    native = _core.Engine(runner, _core.EngineOptions(check_invariants=True))
    frontend = load_frontend(side_files or bundle.checkpoint_path, bundle.model, policy)
    return AsyncEngine(bundle, frontend, native, preprocessor_of(bundle, OPTIONS, policy), OPTIONS)


def with_template(source: str, folder: Path) -> Path:
    """The embedded model's side files with another chat template."""
    bundle: Bundle = prepare_bundle("tiny")
    folder.mkdir()
    for path in bundle.checkpoint_path.glob("*.json"):
        shutil.copy(path, folder)
    (folder / "chat_template.jinja").write_text(source)
    return folder
