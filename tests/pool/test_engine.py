"""A real engine on the tiny model reads a cell in place, and the cell is free when it has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyvlm.build import BuildOptions, prepare_bundle
from pyvlm.chat import user_message
from pyvlm.frontend import Frontend, load_frontend
from pyvlm.media.lease import PatchLease
from pyvlm.media.policy import MediaPolicy
from pyvlm.prompt_plan import ImageSpan, plan_prompt
from tests.pool.conftest import Eventually, MakePool
from tests.pool.pictures import WAIT_S, in_process, submit

_core = pytest.importorskip("pyvlm._core")


def shape(kind: str, colour: str) -> bytes:
    import io

    from PIL import Image, ImageDraw

    image = Image.new("RGB", (192, 192), "white")
    draw = ImageDraw.Draw(image)
    getattr(draw, kind)((40, 40, 150, 150), fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


RED, BLUE = shape("ellipse", "red"), shape("rectangle", "blue")


class Model:
    def __init__(self, cache: Path) -> None:
        from pyvlm.runtime import open_program

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYVLM_CACHE_DIR", str(cache))
            bundle = prepare_bundle("tiny", BuildOptions(max_model_len=256, max_num_seqs=2))
        self.frontend: Frontend = load_frontend(bundle.checkpoint_path, bundle.model, MediaPolicy())
        self.engine = _core.Engine(open_program(bundle))

    def prefill(self, image: object, lease: PatchLease) -> object:
        ids = self.frontend.chat_ids([user_message("What colour is the shape?", 1)])
        plan = plan_prompt(ids, [lease.patches.grid], self.frontend.image_prompt)
        segments = [
            _core.Segment.image(span.index, span.expanded_ids)
            if isinstance(span, ImageSpan)
            else _core.Segment.text(span.start, span.count)
            for span in plan.spans
        ]
        return _core.PreparedPrefill(
            logical_ids=plan.logical_ids,
            segments=segments,
            images=[image],
            image_token_id=plan.image_token_id,
            sampling=_core.SamplingParams(),
            max_new_tokens=8,
            stop_token_ids=list(self.frontend.stop_token_ids),
        )

    def answer(self, seq_id: int) -> str:
        ids: list[int] = []
        while True:
            for output in self.engine.wait_outputs(WAIT_S):
                assert output.seq_id == seq_id
                ids += output.token_ids
                if output.finish_reason is not None:
                    assert output.finish_reason in ("stop", "length"), output.error_message
                    return self.frontend.tokenizer.decode(ids).lower()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = Model(tmp_path_factory.mktemp("cache"))
    yield made
    made.engine.shutdown()


def image_of(lease: PatchLease) -> object:
    return _core.ImageInput.pixels(lease.patches.patches, lease.patches.valid)


@pytest.mark.parametrize("num_workers", [1, 0])
def test_the_cell_is_borrowed_until_the_engine_has_read_it(
    make_pool: MakePool, model: Model, eventually: Eventually, num_workers: int
) -> None:
    pool = make_pool(num_workers=num_workers)
    lease = submit(pool, RED, owner="the engine").result(WAIT_S)
    image = image_of(lease)
    prefill = model.prefill(image, lease)
    lease.release()
    seq_id = model.engine.submit(prefill)
    del image, prefill
    gc.collect()
    # The engine may have read the picture by now, but only wait_outputs drops its owner.
    assert model.engine.num_owners == 1
    assert [(info.owner, info.state) for info in pool.leases()] == [("the engine", "borrowed")]
    assert "red" in model.answer(seq_id)
    assert model.engine.num_owners == 0
    eventually(lambda: pool.leases() == [])


def test_the_engine_reads_the_cell_itself(make_pool: MakePool, model: Model) -> None:
    """What lies in the cell when it is read is what it sees: nothing was copied before."""
    pool = make_pool()
    with submit(pool, RED).result(WAIT_S) as lease:
        prefill = model.prefill(image_of(lease), lease)
        (info,) = pool.leases()
        pool._parts.slab.write(info.offset, in_process(BLUE, pool.transform).tobytes())
        assert "blue" in model.answer(model.engine.submit(prefill))


def test_cells_are_used_again(make_pool: MakePool, model: Model, eventually: Eventually) -> None:
    """More pictures than the slab holds, one after the other, each seen as it is."""
    pool = make_pool(slab_bytes=2 * 110_592)
    for colour, data in [("red", RED), ("blue", BLUE)] * 3:
        with submit(pool, data).result(WAIT_S) as lease:
            np.testing.assert_array_equal(lease.patches.patches, in_process(data, pool.transform))
            seq_id = model.engine.submit(model.prefill(image_of(lease), lease))
        assert colour in model.answer(seq_id)
    eventually(lambda: pool.stats().leased_bytes == 0)
