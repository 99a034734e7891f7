"""The tables made in numpy equal what transformers computes in torch: rotary angles, positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyvlm.emit.layout import position_table
from pyvlm.emit.rope import inverse_frequencies, rope_table
from pyvlm.models.parse import parse_config

torch = pytest.importorskip("torch")
from transformers import Idefics3VisionConfig, LlamaConfig  # noqa: E402
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

pytestmark = pytest.mark.parity

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
    "yarn-deepseek": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "beta_fast": 24,
        "beta_slow": 2,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 8.0,
        "short_factor": [1.0 + 0.1 * i for i in range(32)],
        "long_factor": [2.0 + 0.1 * i for i in range(32)],
        "original_max_position_embeddings": 256,
    },
}


@pytest.mark.parametrize("theta", [10000.0, 100000.0])
@pytest.mark.parametrize("name", ROPES)
def test_rope_table(name: str, theta: float) -> None:
    capacity = 256 if name == "longrope" else 2048
    fields = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_theta": theta, **ROPES[name]},
    }
    rotary = LlamaRotaryEmbedding(LlamaConfig(**fields))
    cos, sin = rotary(torch.zeros(1), torch.arange(capacity)[None])
    expected = torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=-1).numpy()
    rope = parse_config({"model_type": "llama", **fields}).decoder.rope
    # The same frequencies bit by bit; cosines and sines of two libraries.
    np.testing.assert_array_equal(inverse_frequencies(rope, 64)[0], rotary.inv_freq.numpy())
    assert np.abs(rope_table(rope, 64, capacity) - expected).max() < 3e-7


# Where torch.arange's last bit decides a bucket, and that bit depends on the CPU's vector width,
# the reference itself has no single answer. No published size is among them.
WIDTH_DEPENDENT = {19, 25, 29}


@pytest.mark.parametrize("grid", [*(n for n in range(1, 33) if n not in WIDTH_DEPENDENT), 37, 64])
def test_position_ids_of_partly_filled_tiles(grid: int) -> None:
    """Every count of real patches along an axis, in both axes."""
    embeddings = Idefics3VisionEmbeddings(
        Idefics3VisionConfig(hidden_size=1, image_size=grid, patch_size=1, num_channels=1)
    )
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        ids = torch.arange(grid * grid, dtype=torch.float32)
        embeddings.position_embedding.weight.copy_(ids[:, None])
    table = position_table(grid)
    for rows in range(1, grid + 1):
        columns = grid + 1 - rows
        mask = torch.zeros(1, grid, grid, dtype=torch.bool)
        mask[:, :rows, :columns] = True
        with torch.no_grad():
            found = embeddings(torch.zeros(1, 1, grid, grid), mask)
        found = found.reshape(grid, grid).numpy().astype(int)
        expected = table[rows][:, None] * grid + table[columns][None, :]
        np.testing.assert_array_equal(found[:rows, :columns], expected[:rows, :columns])
