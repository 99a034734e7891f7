"""Bundles: fingerprints, opening and refusing, rebuilding; the compiler runs in one test."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import pytest

from pyvlm import build as build_module
from pyvlm import bundle as bundle_module
from pyvlm import recipe as recipe_module
from pyvlm.build import BuildOptions, compile_bundle, prepare_bundle, resolve_model
from pyvlm.bundle import Bundle, open_bundle
from pyvlm.cache import Cache
from pyvlm.errors import PyvlmError
from pyvlm.jsonform import FormError
from pyvlm.manifest import Manifest, fingerprint
from pyvlm.recipe import make_recipe
from pyvlm.weights.checkpoint import open_checkpoint
from tests.unit.gguf_files import write_gguf
from tests.unit.stored import llama_tensors, write_llama

Compiled = list[str]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Replaces the compiler; the list holds what was compiled."""
    seen: Compiled = []

    def fake(mlir: str, _options: Any, progress: Any, scratch: Path) -> bytes:
        assert scratch.is_dir()
        seen.append(mlir)
        progress(0.5)
        return b"program of " + str(len(mlir)).encode()

    monkeypatch.setattr(build_module, "compile_module", fake)
    monkeypatch.setattr(build_module, "target_features", lambda _: ("+sse3", "+clzero"))
    monkeypatch.setattr(bundle_module, "missing_features", lambda _: ())
    return seen


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


def prepare(model: Path, **options: Any) -> Bundle:
    return prepare_bundle(model, BuildOptions(**options), cache=Cache(model.parent / "cache"))


def test_bundle_is_complete_and_found_again(model: Path, compiled: Compiled) -> None:
    bundle = prepare(model, max_num_seqs=2)
    manifest = bundle.manifest
    assert (manifest.name, manifest.model.family, manifest.lowering) == (
        "model",
        "llama",
        "kernels",
    )
    assert (manifest.kv.num_slots, manifest.kv.capacity, manifest.kv.dtype) == (2, 256, "f16")
    assert [(e.chunk, e.context) for e in manifest.prefill] == [(256, 256)]
    assert [(e.batch, e.context) for e in manifest.decode] == [(2, 256)]
    assert manifest.target.features == ("+sse3",)
    assert manifest.vision is None
    assert bundle.program_path.read_bytes().startswith(b"program of")
    assert bundle.archive_path.stat().st_size == manifest.weights.bytes
    assert bundle.model.decoder.hidden_size == 32
    assert prepare(model, max_num_seqs=2) == bundle
    assert len(compiled) == 1


@pytest.mark.usefixtures("compiled")
def test_manifest_survives_json(model: Path) -> None:
    manifest = prepare(model).manifest
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "f32"},
        {"quantize": "int8"},
        {"kv_dtype": "f32"},
        {"max_model_len": 128},
        {"max_num_seqs": 3},
        {"lowering": "codegen"},
        {"target_cpu": "x86-64-v3"},
        {"all_logits": True},
    ],
)
def test_every_option_changes_the_fingerprint(model: Path, change: dict[str, Any]) -> None:
    def of(**options: Any) -> str:
        quantize = options.get("quantize", "none")
        checkpoint = open_checkpoint(model, options.get("dtype", "f16"), quantize)
        return make_recipe(checkpoint, BuildOptions(**options), lambda: "digest").fingerprint

    assert of() == of()
    assert of(**change) != of()


def test_weights_files_versions_and_cpu_change_the_fingerprint(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(digest: str = "digest") -> str:
        return make_recipe(open_checkpoint(model), BuildOptions(), lambda: digest).fingerprint

    seen = {of(), of("other digest")}
    (model / "tokenizer.json").write_text("{}")
    seen.add(of())
    (model / "tokenizer.json").write_text("{ }")
    seen.add(of())
    for name, value in (
        ("emitter_version", lambda: "other"),
        ("check_compiler", lambda: "3.10.0"),
        ("host_features", lambda: ("+avx2",)),
    ):
        monkeypatch.setattr(recipe_module, name, value)
        seen.add(of())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}))
    seen.add(of())
    assert len(seen) == 8


def test_every_ingredient_changes_the_fingerprint() -> None:
    ingredients = {"a": "1", "b": "2"}
    assert fingerprint(ingredients) == fingerprint(dict(reversed(ingredients.items())))
    assert fingerprint({"a": "1", "b": "3"}) != fingerprint(ingredients)
    assert fingerprint({"a": "1"}) != fingerprint(ingredients)


def test_changed_weights_make_another_bundle(model: Path, compiled: Compiled) -> None:
    first = prepare(model)
    write_llama(model, llama_tensors(seed=1))
    second = prepare(model)
    assert first.path != second.path
    assert len(compiled) == 2


@pytest.mark.parametrize("name", ["model.vmfb", "weights.irpa", "checkpoint/config.json"])
@pytest.mark.parametrize("damage", ["truncated", "removed", "rewritten"])
def test_damaged_file_is_found_and_the_cached_bundle_rebuilt(
    model: Path, compiled: Compiled, name: str, damage: str
) -> None:
    bundle = prepare(model)
    file = bundle.path / name
    good = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(good[:-1])
    elif damage == "removed":
        file.unlink()
    else:
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(PyvlmError, match=file.name) as info:
        open_bundle(bundle.path)
    assert info.value.code == "model_invalid"
    assert (prepare(model).path / name).read_bytes() == good
    assert len(compiled) == 2


@pytest.mark.parametrize("name", ["model.vmfb", "checkpoint/config.json"])
def test_damage_that_keeps_size_and_time_is_found_in_small_files(
    model: Path, compiled: Compiled, name: str
) -> None:
    file = prepare(model).path / name
    good, stat = file.read_bytes(), file.stat()
    file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (prepare(model).path / name).read_bytes() == good
    assert len(compiled) == 2


@pytest.mark.usefixtures("compiled")
def test_copied_bundle_opens_although_its_times_differ(model: Path) -> None:
    copy = model.parent / "copy"
    shutil.copytree(prepare(model).path, copy, copy_function=shutil.copy)
    assert open_bundle(copy).manifest.name == "model"


def edit(bundle: Bundle, change: Any) -> Path:
    """A copy of the bundle whose manifest went through `change`."""
    path = bundle.path.parent.parent / "edited"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(bundle.path, path)
    raw = json.loads((path / "manifest.json").read_text())
    change(raw)
    (path / "manifest.json").write_text(json.dumps(raw))
    return path


def _set_ingredient(raw: dict[str, Any], name: str) -> None:
    raw["ingredients"][name] = "other"
    raw["fingerprint"] = fingerprint(raw["ingredients"])


def _as_schema_1(raw: dict[str, Any]) -> None:
    """A bundle from before weights could be quantised."""
    raw["schema"] = 1
    del raw["model"]["quantize"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda m: m.update(schema=99), "program_mismatch", "schema 99"),
        (_as_schema_1, "program_mismatch", "schema 1"),
        (lambda m: m.update(compiler="3.8.0"), "program_mismatch", "3.8.0"),
        (lambda m: m.update(surprise=1), "model_invalid", "surprise is unknown"),
        (lambda m: m.pop("kv"), "model_invalid", "kv is missing"),
        (lambda m: m["kv"].update(capacity="9"), "model_invalid", "kv.capacity is '9'"),
        (lambda m: m["kv"].update(capacity=True), "model_invalid", "kv.capacity"),
        (lambda m: m["decode"][0].pop("batch"), "model_invalid", r"decode\[0\].batch"),
        (lambda m: m["ingredients"].update(weights="x"), "model_invalid", "fingerprint"),
        (
            functools.partial(_set_ingredient, name="emitter"),
            "program_mismatch",
            "version of pyvlm",
        ),
        (lambda m: m["program"].update(file="../x"), "model_invalid", "leaves the bundle"),
        (lambda m: m["weights"].update(sha256="0", mtime_ns=1), "model_invalid", "content changed"),
    ],
)
@pytest.mark.usefixtures("compiled")
def test_manifest_that_does_not_fit_is_refused(
    model: Path, change: Any, code: str, words: str
) -> None:
    path = edit(prepare(model), change)
    with pytest.raises(PyvlmError, match=words) as info:
        open_bundle(path)
    assert info.value.code == code
    assert "compile it again" in info.value.message


def test_manifest_must_be_json() -> None:
    for text in ("", "[]", "nonsense"):
        with pytest.raises(FormError):
            Manifest.from_json(text)


@pytest.mark.usefixtures("compiled")
def test_program_for_another_cpu_is_refused_if_explicit(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "missing_features", lambda _: ("+avx512f",))
    compile_bundle(model, model.parent / "out", BuildOptions(target_cpu="x86-64-v4"))
    with pytest.raises(PyvlmError, match=r"'x86-64-v4'.*lacks avx512f.*--target-cpu") as info:
        prepare_bundle(model.parent / "out")
    assert info.value.code == "program_mismatch"


@pytest.mark.usefixtures("compiled")
def test_explicit_bundle_loads_and_refuses_other_wishes(model: Path) -> None:
    output = model.parent / "out"
    compile_bundle(model, output, BuildOptions(max_num_seqs=2))
    shutil.rmtree(model)  # a bundle needs its checkpoint no more
    assert prepare_bundle(output).path == output
    assert prepare_bundle(output, BuildOptions(max_num_seqs=2, dtype="f16")).path == output
    with pytest.raises(PyvlmError, match="--max-num-seqs 2, not 4") as info:
        prepare_bundle(output, BuildOptions(max_num_seqs=4))
    assert (info.value.code, info.value.param) == ("program_mismatch", "max_num_seqs")
    with pytest.raises(PyvlmError, match="compiled already"):
        compile_bundle(output, model.parent / "out2")


def test_wrong_checkpoint_is_refused_before_compiling(model: Path, compiled: Compiled) -> None:
    tensors = llama_tensors()
    del tensors["model.norm.weight"]
    write_llama(model, tensors)
    with pytest.raises(PyvlmError, match=r"model\.norm\.weight"):
        prepare(model)
    assert not compiled


def test_too_large_a_cache_is_refused_before_compiling(
    model: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyvlm.memory.available_bytes", lambda: 1000)
    with pytest.raises(PyvlmError, match="--max-num-seqs") as info:
        prepare(model)
    assert info.value.code == "out_of_memory"
    assert not compiled
    compile_bundle(model, model.parent / "out")  # for another machine: not judged here


@pytest.mark.usefixtures("compiled")
def test_gguf_becomes_a_bundle_with_a_directory_of_side_files(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "some.gguf")
    bundle = prepare(path)
    names = {file.name for file in bundle.checkpoint_path.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    assert bundle.manifest.name == "some"
    assert bundle.model.decoder.rope.theta == 50000.0


@pytest.mark.usefixtures("compiled")
def test_progress_reports_each_stage(model: Path) -> None:
    stages: list[str] = []
    cache = Cache(model.parent / "cache")
    prepare_bundle(model, progress=lambda stage, *_: stages.append(stage), cache=cache)
    assert list(dict.fromkeys(stages)) == ["hash", "compile", "weights", "ready"]
    stages.clear()
    prepare_bundle(model, progress=lambda stage, *_: stages.append(stage), cache=cache)
    assert stages == ["hash"]


def test_unknown_models_and_slots_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(PyvlmError) as info:
        resolve_model(str(tmp_path / "nothing"))
    assert info.value.code == "model_not_found"
    (tmp_path / "empty").mkdir()
    with pytest.raises(PyvlmError, match="no model directory"):
        prepare_bundle(tmp_path / "empty", cache=Cache(tmp_path / "cache"))
    with pytest.raises(PyvlmError, match="--max-num-seqs 0"):
        prepare(model, max_num_seqs=0)
    with pytest.raises(PyvlmError, match="--max-model-len 9999"):
        prepare(model, max_model_len=9999)


@pytest.mark.usefixtures("compiled")
def test_memory_need_of_a_bundle(model: Path) -> None:
    bundle = prepare(model, max_num_seqs=2)
    need = bundle.memory_need()
    assert need.kv == 2 * 2 * 2 * 2 * 256 * 8 * 2  # buffers, layers, slots, heads, C, D, bytes
    assert need.weights == bundle.archive_path.stat().st_size
    assert need.images == 0
    per_row = 2 * 32 + (4 + 2 * 2) * 8 + 32 + 3 * 40  # hidden, qkv, attention, gate-up-down
    assert need.activations == (256 * per_row + 2 * 50) * 4
    recipe = make_recipe(open_checkpoint(model), BuildOptions(max_num_seqs=2), lambda: "")
    assert recipe.memory_need() == need


def test_compiled_bundle_computes_in_the_reference_runtime(tmp_path: Path) -> None:
    """The whole way with the real compiler: one token through the codegen lowering."""
    model = write_llama(tmp_path / "model")
    options = BuildOptions(lowering="codegen", dtype="f32", max_num_seqs=1, max_model_len=8)
    bundle = prepare_bundle(model, options, cache=Cache(tmp_path / "cache"))
    assert set(bundle.manifest.target.features) <= set(recipe_module.host_features())
    index = iree.runtime.ParameterIndex()
    index.load(str(bundle.archive_path))
    config = iree.runtime.Config("local-sync")
    provider = iree.runtime.create_io_parameters_module(
        config.vm_instance, index.create_provider(scope="model")
    )
    program = iree.runtime.VmModule.mmap(config.vm_instance, str(bundle.program_path))
    modules = iree.runtime.load_vm_modules(provider, program, config=config)
    kv = np.zeros((2, 1, 2, 8, 8), np.float32)
    token, zero = np.array([7], np.int32), np.zeros(1, np.int32)
    decode = modules[-1][bundle.manifest.decode[0].function]
    logits = np.asarray(decode(token, zero, zero, 1, kv, kv.copy())[0])
    np.testing.assert_allclose(
        logits[0], one_token_logits(llama_tensors(), 7), rtol=1e-3, atol=1e-3
    )


def one_token_logits(t: dict[str, Any], token: int) -> Any:
    """A sequence of one token attends to itself alone: attention passes its value through."""

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt(np.mean(x * x) + 1e-5) * t[name]

    x = t["model.embed_tokens.weight"][token].astype(np.float64)
    for i in range(2):
        layer = f"model.layers.{i}."
        h = norm(x, f"{layer}input_layernorm.weight")
        value = (t[f"{layer}self_attn.v_proj.weight"] @ h).reshape(2, 8)
        x = x + t[f"{layer}self_attn.o_proj.weight"] @ value.repeat(2, axis=0).reshape(-1)
        h = norm(x, f"{layer}post_attention_layernorm.weight")
        gate = t[f"{layer}mlp.gate_proj.weight"] @ h
        up = t[f"{layer}mlp.up_proj.weight"] @ h
        x = x + t[f"{layer}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return t["lm_head.weight"] @ norm(x, "model.norm.weight")
