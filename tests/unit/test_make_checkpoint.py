"""The random checkpoints: the same bytes for a seed, published ids, complete shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from tools.checkpoints.shapes import SHAPES, SMOLVLM_256M
from tools.checkpoints.tokenizer import write_tokenizer
from tools.checkpoints.weights import to_stored
from tools.make_checkpoint import main, make_checkpoint


def test_seed_decides_every_byte(tmp_path: Path) -> None:
    first, again, other = (
        make_checkpoint(tmp_path / name, SHAPES["reduced"], seed)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name
    weights = "model.safetensors"
    assert (first / weights).read_bytes() != (other / weights).read_bytes()


def test_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "whole", SHAPES["odd"])
    parts = make_checkpoint(tmp_path / "parts", SHAPES["odd"], shards=3)
    weight_map = json.loads((parts / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) == 3
    with safe_open(whole / "model.safetensors", "numpy") as reference:
        assert set(reference.keys()) == set(weight_map)
        for name, file in weight_map.items():
            with safe_open(parts / file, "numpy") as shard:
                np.testing.assert_array_equal(shard.get_tensor(name), reference.get_tensor(name))


def test_published_ids_of_the_full_shape(tmp_path: Path) -> None:
    ids = write_tokenizer(tmp_path, SMOLVLM_256M.bpe_vocab, SMOLVLM_256M.text.vocab)
    assert (ids.image, ids.fake, ids.end_of_utterance) == (49190, 49189, 49279)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.token_to_id("<global-img>") == 49152
    assert tokenizer.token_to_id("<row_1_col_1>") == 49153
    assert tokenizer.get_vocab_size() == 49280


def test_text_survives_the_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 384, 512)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Ünïcödé 漢字 12 and\n<image><end_of_utterance>"
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text
    assert max(encoding.ids) == 511


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (-2.0, 0xC000), (0.0, 0)],
)
def test_bf16_rounds_to_nearest_even(value: float, bits: int) -> None:
    assert to_stored(np.array([value], np.float32), "bf16")[0] == bits


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--shape", "rope-yarn", "--output", str(tmp_path / "yarn"), "--stored", "f16"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "yarn")
    config = json.loads((tmp_path / "yarn" / "config.json").read_text())
    assert config["torch_dtype"] == "float16"
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert not (tmp_path / "yarn" / "preprocessor_config.json").exists()
