"""Checkpoints to archives: values, layouts, precision, and every way a checkpoint is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pyvlm.emit.layout import Lowering, parameters
from pyvlm.emit.rope import rope_table
from pyvlm.errors import PyvlmError
from pyvlm.weights import convert
from pyvlm.weights.archive import ArchiveWriter, archive_bytes, is_archive
from pyvlm.weights.checkpoint import open_checkpoint
from pyvlm.weights.convert import check_checkpoint, write_parameters
from pyvlm.weights.source import to_dtype
from tests.unit.stored import LLAMA, llama_tensors, read_archive, unpack, write_llama
from tools.checkpoints.shapes import SHAPES
from tools.checkpoints.tensors import checkpoint_tensors
from tools.make_checkpoint import make_checkpoint


def convert_and_read(
    directory: Path, lowering: Lowering = "kernels", dtype: Any = "f16", capacity: int = 64
) -> dict[str, Any]:
    checkpoint = open_checkpoint(directory, dtype)
    path = directory / "weights.irpa"
    info = write_parameters(
        path, checkpoint.model, checkpoint.source, lowering=lowering, capacity=capacity
    )
    assert info.num_bytes == path.stat().st_size
    params = parameters(checkpoint.model, lowering, capacity)
    return {n: unpack(params[n], a) for n, a in read_archive(path, params).items()}


@pytest.mark.parametrize("lowering", ["kernels", "codegen"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("shape", ["odd", "qwen2"])
def test_archive_holds_every_tensor_under_its_parameter(
    tmp_path: Path, shape: str, dtype: str, lowering: Lowering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "BLOCK_BYTES", 4 * 16 * 72 * 3)  # several blocks a matrix
    directory = make_checkpoint(tmp_path / "model", SHAPES[shape])
    theirs = dict(checkpoint_tensors(SHAPES[shape], 0))
    ours = convert_and_read(directory, lowering, dtype)
    used = set()
    for name, stored in ours.items():
        if name in ("rope", "vision.position_table"):
            continue
        pieces = _expected_pieces(name, theirs)
        used |= set(pieces)
        expected = np.concatenate([theirs[p].reshape(theirs[p].shape[0], -1) for p in pieces])
        expected = expected.reshape(stored.shape)
        if SHAPES[shape].stored == "bf16":
            expected = _rounded_to_bf16(expected)
        np.testing.assert_array_equal(stored, expected.astype(stored.dtype), err_msg=name)
    assert used == set(theirs)
    decoder = open_checkpoint(directory).model.decoder
    np.testing.assert_array_equal(ours["rope"], rope_table(decoder.rope, decoder.head_dim, 64))


def _expected_pieces(name: str, theirs: dict[str, Any]) -> list[str]:
    """The checkpoint's tensors of a parameter, spelt here a second time."""
    kind = "bias" if name.endswith("_bias") else "weight"
    base = name.removesuffix("_bias")
    text = "model.text_model." if "model.text_model.norm.weight" in theirs else "model."
    vision = "model.vision_model."
    whole = {
        "embed": [f"{text}embed_tokens"],
        "head": ["lm_head"],
        "final_norm": [f"{text}norm"],
        "vision.patch": [f"{vision}embeddings.patch_embedding"],
        "vision.position": [f"{vision}embeddings.position_embedding"],
        "vision.post_norm": [f"{vision}post_layernorm"],
        "vision.connector": ["model.connector.modality_projection.proj"],
    }
    last = base.rsplit(".", 1)[-1]
    if base in whole:
        stems = whole[base]
    elif base.startswith("layers."):
        prefix = f"{text}layers.{base.split('.')[1]}."
        stems = {
            "norm1": ["input_layernorm"],
            "norm2": ["post_attention_layernorm"],
            "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "o": ["self_attn.o_proj"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }[last]
        stems = [prefix + stem for stem in stems]
    else:
        prefix = f"{vision}encoder.layers.{base.split('.')[2]}."
        stems = {
            "norm1": ["layer_norm1"],
            "norm2": ["layer_norm2"],
            "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "o": ["self_attn.out_proj"],
            "fc1": ["mlp.fc1"],
            "fc2": ["mlp.fc2"],
        }[last]
        stems = [prefix + stem for stem in stems]
    return [f"{stem}.{kind}" for stem in stems]


def _rounded_to_bf16(values: Any) -> Any:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def test_shards_give_the_same_archive_as_one_file(tmp_path: Path) -> None:
    one = make_checkpoint(tmp_path / "one", SHAPES["text"])
    many = make_checkpoint(tmp_path / "many", SHAPES["text"], shards=3)
    assert not (many / "model.safetensors").exists()
    a, b = convert_and_read(one), convert_and_read(many)
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "m", SHAPES["text"], shards=3)
    shard = sorted(directory.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(PyvlmError, match=shard.name) as info:
        open_checkpoint(directory)
    assert info.value.code == "missing_tensor"


def test_index_that_lies_about_a_shard_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "m", SHAPES["text"], shards=2)
    index = directory / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    shards = sorted(set(raw["weight_map"].values()))
    name = next(n for n, s in raw["weight_map"].items() if s == shards[0])
    raw["weight_map"][name] = shards[1]
    index.write_text(json.dumps(raw))
    with pytest.raises(PyvlmError, match=name):
        open_checkpoint(directory)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}'])
def test_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    directory = write_llama(tmp_path / "m")
    (directory / "model.safetensors.index.json").write_text(text)
    with pytest.raises(PyvlmError) as info:
        open_checkpoint(directory)
    assert info.value.code == "model_invalid"


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_truncated_safetensors_is_refused(tmp_path: Path, keep: int) -> None:
    directory = write_llama(tmp_path / "m")
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(PyvlmError, match="damaged") as info:
        open_checkpoint(directory)
    assert info.value.code == "model_invalid"


def test_directory_without_weights_and_stray_files(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    (directory / "model.safetensors").unlink()
    with pytest.raises(PyvlmError, match=r"neither model\.safetensors"):
        open_checkpoint(directory)
    with pytest.raises(PyvlmError, match="no such model"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(PyvlmError, match="neither a directory"):
        open_checkpoint(tmp_path / "notes.txt")


def check(directory: Path) -> None:
    checkpoint = open_checkpoint(directory)
    check_checkpoint(checkpoint.model, checkpoint.source)


def test_missing_tensors_are_all_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    gone = ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"]
    for name in gone:
        del tensors[name]
    with pytest.raises(PyvlmError) as info:
        check(write_llama(tmp_path / "m", tensors))
    assert info.value.code == "missing_tensor"
    assert all(name in info.value.message for name in gone)


def test_vlm_without_its_vision_weights_names_them(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "m", SHAPES["smolvlm-type"])
    file = directory / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if not n.startswith("model.vision")}
    save_file(kept, file)
    with pytest.raises(PyvlmError, match=r"model\.vision_model\..* and \d+ more") as info:
        check(directory)
    assert info.value.code == "missing_tensor"


def test_unexpected_tensor_is_named_and_old_buffers_are_not(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    check(write_llama(tmp_path / "a", tensors))
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(8, np.float32)
    with pytest.raises(PyvlmError, match=r"unexpected tensors: .*q_norm\.weight"):
        check(write_llama(tmp_path / "b", tensors))


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.down_proj.weight"] = np.ones((32, 41), np.float32)
    with pytest.raises(PyvlmError, match=r"down_proj\.weight has shape \[32, 41\].*\[32, 40\]"):
        check(write_llama(tmp_path / "m", tensors))


def test_unsupported_stored_type_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.norm.weight"] = np.ones(32, np.int8)
    with pytest.raises(PyvlmError, match=r"model\.norm\.weight is stored as I8") as info:
        open_checkpoint(write_llama(tmp_path / "m", tensors))
    assert info.value.code == "model_unsupported"


def test_value_beyond_f16_names_the_tensor_and_the_option(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] = -70000.0
    directory = write_llama(tmp_path / "m", tensors)
    with pytest.raises(PyvlmError, match=r"layers\.1\.self_attn\.k_proj.*-70000.*--dtype f32"):
        convert_and_read(directory)
    (directory / "weights.irpa").unlink()
    ours = convert_and_read(directory, dtype="f32")
    assert ours["layers.1.qkv"].min() == -70000.0


def test_large_norm_weights_stay_f32(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.norm.weight"][0] = 1e6
    ours = convert_and_read(write_llama(tmp_path / "m", tensors))
    assert ours["final_norm"].dtype == np.float32
    assert ours["final_norm"][0] == 1e6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_non_finite_values_are_refused(value: float, stored: Any, dtype: str) -> None:
    values = np.zeros((4, 4), stored)
    values[1, 2] = value
    with pytest.raises(PyvlmError, match="some name holds NaN or infinity"):
        to_dtype(values, dtype, "some name")


def test_rounding_to_the_largest_f16_is_accepted() -> None:
    largest = np.array([65519.0, -65519.0], np.float32)
    np.testing.assert_array_equal(to_dtype(largest, "f16", "x"), [65504.0, -65504.0])
    with pytest.raises(PyvlmError, match="65520"):
        to_dtype(np.array([65520.0], np.float32), "f16", "x")


def test_stored_copy_of_a_tied_head_must_be_equal(tmp_path: Path) -> None:
    tensors = llama_tensors()
    with pytest.raises(PyvlmError, match=r"lm_head\.weight and model\.embed_tokens\.weight differ"):
        check(write_llama(tmp_path / "a", tensors, tie_word_embeddings=True))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    directory = write_llama(tmp_path / "b", tensors, tie_word_embeddings=True)
    assert "head" not in convert_and_read(directory)


def test_text_part_of_an_unknown_vlm_is_found_by_its_embedding(tmp_path: Path) -> None:
    renamed = {
        n.replace("model.", "language_model.model.").replace("lm_head", "language_model.lm_head"): t
        for n, t in llama_tensors().items()
    }
    renamed["vision_tower.weight"] = np.ones(3, np.float32)
    directory = write_llama(tmp_path / "m", renamed)
    config = {"model_type": "shinyvlm", "text_config": LLAMA, "tie_word_embeddings": False}
    (directory / "config.json").write_text(json.dumps(config))
    ours = convert_and_read(directory, "codegen", "f32")
    np.testing.assert_array_equal(ours["head"], llama_tensors()["lm_head.weight"])
    renamed["other.embed_tokens.weight"] = np.ones((2, 2), np.float32)
    save_file(renamed, directory / "model.safetensors")
    with pytest.raises(PyvlmError, match=r"language_model\.model\.embed_tokens.*other\.embed"):
        check(directory)


def test_progress_counts_bytes_to_the_end(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_llama(tmp_path / "m"))
    seen: list[tuple[int, int]] = []
    write_parameters(
        tmp_path / "w",
        checkpoint.model,
        checkpoint.source,
        lowering="codegen",
        capacity=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_archive_entries_are_aligned_and_its_size_is_foretold(tmp_path: Path) -> None:
    sizes = {"a": 3, "β": 64, "c": 65}
    path = tmp_path / "x.irpa"
    with ArchiveWriter(path, sizes) as writer:
        for name, size in sizes.items():
            writer.add(name, [np.full(size, size, np.uint8)])
    assert path.stat().st_size == archive_bytes(sizes) == writer.info.num_bytes
    assert is_archive(path)
    import iree.runtime

    index = iree.runtime.ParameterIndex()
    index.load(str(path))
    for (name, entry), (expected, size) in zip(index.items(), sizes.items(), strict=True):
        assert name == expected
        assert bytes(entry.file_view) == bytes([size]) * size
    path.write_bytes(path.read_bytes()[:-1])
    assert not is_archive(path)
    path.write_bytes(b"IRPA")
    assert not is_archive(path)


def test_archive_writer_refuses_wrong_order_size_and_absence(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="out of order"),
        ArchiveWriter(tmp_path / "a", {"a": 4, "b": 4}) as writer,
    ):
        writer.add("b", [np.zeros(4, np.uint8)])
    with (
        pytest.raises(ValueError, match="3 bytes written, 4 declared"),
        ArchiveWriter(tmp_path / "b", {"a": 4}) as writer,
    ):
        writer.add("a", [np.zeros(3, np.uint8)])
    with pytest.raises(ValueError, match="not written"), ArchiveWriter(tmp_path / "c", {"a": 4}):
        pass
