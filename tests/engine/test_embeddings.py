"""Ready rows from the caller's process instead of a picture."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pyvlm import _core
from pyvlm.chat import user_message
from pyvlm.errors import PyvlmError
from pyvlm.media.header import read_header
from pyvlm.media.preprocess import preprocess_image
from pyvlm.media.transform import TileGrid
from pyvlm.request import Embeddings, GenerationRequest
from pyvlm.sampling import SamplingParams
from tests.engine.bench import QUESTION, ask, collect, ids_of, picture, run, settled

_core_testing = pytest.importorskip("pyvlm._core_testing")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def rows(bundle, program) -> np.ndarray:
    """What the tower makes of the red picture, by its own functions."""
    from functools import partial

    from pyvlm.files import read_if_any
    from pyvlm.media.settings import load_transform

    vision = bundle.model.vision
    transform = load_transform(partial(read_if_any, bundle.checkpoint_path), vision)
    data = picture("red")
    made = preprocess_image(data, read_header(data), transform)
    hidden = program.invoke("vision_embed", [made.patches[0], made.valid[0]])[0]
    for group in range(program.spec.vision.num_block_groups):
        hidden = program.invoke(f"vision_blocks_{group}", [hidden, made.valid[0]])[0]
    shape = (vision.rows_per_tile, bundle.model.decoder.hidden_size)
    (found,) = program.invoke("vision_project", [hidden, np.zeros(shape, np.float32), 0])
    return np.array(found)


def with_rows(rows: np.ndarray, **sampling: object) -> GenerationRequest:
    return GenerationRequest(
        [user_message(QUESTION, 1)], [Embeddings(rows)], SamplingParams(**sampling)
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_answer_as_their_picture(open_engine, rows, dtype: str) -> None:
    given = rows.astype(dtype)
    before = sys.getrefcount(given)

    async def work() -> None:
        async with open_engine() as engine:
            assert await ids_of(engine, with_rows(given)) == await ids_of(engine, ask("red"))
            await settled(engine)
            assert engine.stats().pool.num_done == 1  # the picture

    run(work())
    assert sys.getrefcount(given) == before


def test_rows_are_read_where_they_are(open_engine, program, rows) -> None:
    probe = _core_testing.RowsProbe(_core.IreeRunner(program))

    async def work() -> None:
        async with open_engine(runner=probe) as engine:
            await collect(engine, with_rows(rows, max_tokens=2))
            assert probe.last_rows == rows.ctypes.data

    run(work())


def test_wrong_rows_are_refused(open_engine, rows) -> None:
    bad = rows.copy()
    bad[3, 4] = np.nan
    cases = [
        (Embeddings(rows[:-1]), "placeholder_mismatch"),
        (Embeddings(rows[0]), "placeholder_mismatch"),
        (Embeddings(rows, TileGrid(1, 2)), "placeholder_mismatch"),
        (Embeddings(rows[:, :-1].copy()), "image_shape"),
        (Embeddings(rows.astype("float64")), "image_dtype"),
        (Embeddings(bad), "non_finite"),
    ]

    async def work() -> None:
        async with open_engine() as engine:
            for image, code in cases:
                with pytest.raises(PyvlmError) as caught:
                    await collect(engine, GenerationRequest([user_message(QUESTION, 1)], [image]))
                assert caught.value.code == code
                await settled(engine)
            assert engine.stats().native.num_submitted == 0

    run(work())
