"""A call that throws under the real engine, on the model of the package: who ends, who does not.

The throw comes before the call reaches the device. A dispatch that fails on the device is another
matter: it loses the device (docs/adr/0009).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from pyvlm import _core, _core_testing
from pyvlm.build import prepare_bundle
from pyvlm.cache import Cache
from pyvlm.manifest import Manifest
from pyvlm.runtime import open_program

NUM_TOKENS = 8


@dataclass
class Scene:
    """One engine over the faulty runner of the real one, and four prompts, two with images."""

    program: object
    runner: object
    engine: object
    prompts: list[object]
    expected: list[list[int]]

    def run(self, prompts: list[object] | None = None) -> list[tuple[list[int], object]]:
        ids = [self.engine.submit(prompt) for prompt in prompts or self.prompts]
        tokens: dict[int, list[int]] = {seq_id: [] for seq_id in ids}
        last: dict[int, object] = {}
        deadline = time.monotonic() + 120
        while len(last) < len(ids):
            assert time.monotonic() < deadline
            for output in self.engine.wait_outputs(1.0):
                tokens[output.seq_id] += output.token_ids
                if output.finish_reason is not None:
                    last[output.seq_id] = output
        return [(tokens[seq_id], last[seq_id]) for seq_id in ids]

    def check_idle(self, used_bytes: int) -> None:
        stats = self.engine.stats()
        assert stats.is_alive
        assert (stats.num_waiting, stats.num_running, stats.num_cached) == (0, 0, 0)
        assert (stats.num_leases, self.engine.num_owners) == (0, 0)
        assert self.program.device.used_bytes <= used_bytes

    def failed(self, results: list[tuple[list[int], object]]) -> list[int]:
        """Indexes of those that ended by the fault; all others have their own tokens."""
        failed = []
        for index, (tokens, output) in enumerate(results):
            if output.finish_reason == "error":
                assert output.error_code == "engine_failed"
                assert tokens == self.expected[index][: len(tokens)]
                failed.append(index)
            else:
                assert output.finish_reason == "length"
                assert tokens == self.expected[index]
        return failed


def make_prompts(manifest: Manifest) -> list[object]:
    vision, random = manifest.vision, np.random.default_rng(5)
    assert vision is not None
    image_id = manifest.model.vocab_size - 1

    def prompt(num_text: int, *images: tuple[object, int]) -> object:
        logical = random.integers(1, image_id, num_text).tolist()
        segments = [_core.Segment.text(0, num_text)]
        for index, (_, num_rows) in enumerate(images):
            logical.append(image_id)
            segments.append(_core.Segment.image(index, [1, *[image_id] * num_rows, 2]))
        return _core.PreparedPrefill(
            logical_ids=logical,
            segments=segments,
            images=[image for image, _ in images],
            image_token_id=image_id,
            sampling=_core.SamplingParams(),
            max_new_tokens=NUM_TOKENS,
            stop_token_ids=[],
        )

    def pixels(num_tiles: int) -> tuple[object, int]:
        patches = random.standard_normal((num_tiles, vision.num_patches, vision.patch_dim))
        valid = np.full((num_tiles, 2), vision.grid, np.int32)
        image = _core.ImageInput.pixels(patches.astype(np.float32), valid)
        return image, num_tiles * vision.rows_per_tile

    rows = random.standard_normal((5, manifest.model.hidden_size)).astype(np.float32)
    return [
        prompt(3),
        prompt(2, pixels(2)),
        prompt(90),
        prompt(4, (_core.ImageInput.embeddings(rows), 5), pixels(1)),
    ]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    bundle = prepare_bundle("tiny", cache=Cache(tmp_path_factory.mktemp("cache")))
    program = open_program(bundle, num_threads=2)
    runner = _core_testing.FaultRunner(_core.IreeRunner(program))
    prompts = make_prompts(bundle.manifest)
    with _core.Engine(runner, _core.EngineOptions(check_invariants=True)) as engine:
        scene = Scene(program, runner, engine, prompts, [])
        scene.expected = [tokens for tokens, _ in scene.run()]
        assert [tokens for tokens, _ in scene.run()] == scene.expected
        yield scene


@pytest.mark.parametrize("call", ["encode", "import_rows", "prefill"])
def test_every_single_failure_of_prompt_work_ends_one_sequence(scene: Scene, call: str) -> None:
    used = scene.program.device.used_bytes
    seen: set[int] = set()
    k = 0
    while True:
        k += 1
        before = scene.runner.num_strikes
        scene.runner.add(_core_testing.Fault(call, first=k))
        failed = scene.failed(scene.run())
        if scene.runner.num_strikes == before:  # k is beyond the last call
            assert failed == []
            break
        assert len(failed) == 1
        seen.update(failed)
        scene.check_idle(used)
        assert scene.failed(scene.run()) == []
    while scene.runner.num_strikes == before:  # spend it
        scene.run()
    assert scene.failed(scene.run()) == []
    assert seen == {"encode": {1, 3}, "import_rows": {3}, "prefill": {0, 1, 2, 3}}[call]


def test_a_decode_that_fails_once_is_repeated_and_nobody_ends(scene: Scene) -> None:
    used = scene.program.device.used_bytes
    for k in range(1, NUM_TOKENS):
        retries = scene.engine.stats().num_decode_retries
        scene.runner.add(_core_testing.Fault("decode", first=k))
        results = scene.run()
        failed = scene.failed(results)
        retried = scene.engine.stats().num_decode_retries - retries
        # A step of a single row cannot be repeated in parts.
        assert len(failed) + retried == 1
        scene.check_idle(used)


def test_a_row_that_always_fails_ends_alone(scene: Scene) -> None:
    used = scene.program.device.used_bytes
    for slot in range(4):
        for k in (1, 3):
            scene.runner.add(_core_testing.Fault("decode", first=k, count=2, slot=slot))
            assert len(scene.failed(scene.run())) == 1
            scene.check_idle(used)
            # What is left of the fault's calls: those of the next owners of that slot.
            while scene.failed(scene.run()):
                pass
            assert scene.failed(scene.run()) == []


def test_logits_that_are_no_numbers_end_their_row_alone(scene: Scene) -> None:
    used = scene.program.device.used_bytes
    scene.runner.add(_core_testing.Fault("decode", "corrupt", first=3, slot=1))
    assert len(scene.failed(scene.run())) == 1
    scene.check_idle(used)
    assert scene.failed(scene.run()) == []


def test_a_slow_call_changes_nothing(scene: Scene) -> None:
    for call in ("encode", "prefill", "decode"):
        before = scene.runner.num_strikes
        scene.runner.add(_core_testing.Fault(call, "delay", delay_ms=50))
        assert scene.failed(scene.run()) == []
        assert scene.runner.num_strikes == before + 1
