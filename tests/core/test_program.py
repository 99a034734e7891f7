"""Programs on the local device: calls, memory that is shared instead of copied, errors."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from aligned_arrays import aligned

from pyvlm import _core
from pyvlm.errors import ERROR_CODES, PyvlmError

BASIC = """
module @model {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = arith.addf %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @scale(%a: tensor<?xi32>, %factor: i32) -> tensor<?xi32> {
    %c0 = arith.constant 0 : index
    %n = tensor.dim %a, %c0 : tensor<?xi32>
    %e = tensor.empty(%n) : tensor<?xi32>
    %f = linalg.fill ins(%factor : i32) outs(%e : tensor<?xi32>) -> tensor<?xi32>
    %0 = arith.muli %a, %f : tensor<?xi32>
    return %0 : tensor<?xi32>
  }
  func.func @next(%i: index) -> index {
    %c1 = arith.constant 1 : index
    %0 = arith.addi %i, %c1 : index
    return %0 : index
  }
  func.func @write(%kv: tensor<8x64x16xf32> {iree.abi.consume}, %x: tensor<1x1x16xf32>,
                   %slot: index, %position: index) -> (tensor<16xf32>, tensor<8x64x16xf32>) {
    %u = tensor.insert_slice %x into %kv[%slot, %position, 0] [1, 1, 16] [1, 1, 1]
        : tensor<1x1x16xf32> into tensor<8x64x16xf32>
    %r = tensor.extract_slice %u[%slot, %position, 0] [1, 1, 16] [1, 1, 1]
        : tensor<8x64x16xf32> to tensor<16xf32>
    %q = arith.addf %r, %r : tensor<16xf32>
    return %q, %u : tensor<16xf32>, tensor<8x64x16xf32>
  }
}
"""

NUM_WEIGHTS = 16 << 20  # 64 MiB of f32
PARAMETER = f"""
module @model {{
  util.global private @weights = #flow.parameter.named<"model"::"weights">
      : tensor<{NUM_WEIGHTS}xf32>
  func.func @sum(%factor: tensor<f32>) -> tensor<f32> {{
    %w = util.global.load @weights : tensor<{NUM_WEIGHTS}xf32>
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<f32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<f32>) -> tensor<f32>
    %0 = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>,
                                           affine_map<(i) -> ()>],
                          iterator_types = ["reduction"]}}
        ins(%w, %factor : tensor<{NUM_WEIGHTS}xf32>, tensor<f32>) outs(%init : tensor<f32>) {{
      ^bb0(%x: f32, %y: f32, %s: f32):
        %p = arith.mulf %x, %y : f32
        %t = arith.addf %s, %p : f32
        linalg.yield %t : f32
    }} -> tensor<f32>
    return %0 : tensor<f32>
  }}
}}
"""

KERNEL = """
module @model {
  stream.executable private @norms {
    stream.executable.export public @norm_entry workgroups() -> (index, index, index) {
      %c2 = arith.constant 2 : index
      %c1 = arith.constant 1 : index
      stream.return %c2, %c1, %c1 : index, index, index
    }
    builtin.module {
      func.func private @KERNEL(memref<f32>, index, memref<f32>, index, memref<f32>, index,
                                index, index, index, index, index)
          attributes {llvm.bareptr = true}
      func.func @norm_entry(%a: !stream.binding, %b: !stream.binding, %c: !stream.binding) {
        %c0 = arith.constant 0 : index
        %m = arith.constant 3 : index
        %k = arith.constant 40 : index
        %eps = arith.constant 925353388 : index
        %id = stream.dispatch.workgroup.id[0] : index
        %count = stream.dispatch.workgroup.count[0] : index
        %x = stream.binding.subspan %a[%c0] : !stream.binding -> memref<120xf32>
        %w = stream.binding.subspan %b[%c0] : !stream.binding -> memref<40xf32>
        %y = stream.binding.subspan %c[%c0] : !stream.binding -> memref<120xf32>
        %xp, %xo, %x2, %x3 = iree_codegen.extract_strided_metadata %x
            : memref<120xf32> -> memref<f32>, index, index, index
        %wp, %wo, %w2, %w3 = iree_codegen.extract_strided_metadata %w
            : memref<40xf32> -> memref<f32>, index, index, index
        %yp, %yo, %y2, %y3 = iree_codegen.extract_strided_metadata %y
            : memref<120xf32> -> memref<f32>, index, index, index
        func.call @KERNEL(%xp, %xo, %wp, %wo, %yp, %yo, %m, %k, %eps, %id, %count)
            : (memref<f32>, index, memref<f32>, index, memref<f32>, index,
               index, index, index, index, index) -> ()
        return
      }
    }
  }
  func.func @norm(%x: tensor<3x40xf32>, %w: tensor<40xf32>) -> tensor<3x40xf32> {
    %0 = flow.dispatch @norms::@norm_entry(%x, %w)
        : (tensor<3x40xf32>, tensor<40xf32>) -> tensor<3x40xf32>
    return %0 : tensor<3x40xf32>
  }
}
"""


@pytest.fixture(scope="module")
def basic(device, compile_mlir):
    return _core.Program(device, str(compile_mlir(BASIC)))


def _raised(code: str, call, *args, **kwargs) -> PyvlmError:
    with pytest.raises(PyvlmError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code
    return caught.value


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def test_functions_lists_the_exports(basic):
    assert basic.functions == ["add", "next", "scale", "write"]


def test_invoke_adds(basic):
    (result,) = basic.invoke("add", [np.arange(4, dtype="float32"), np.ones(4, "float32")])
    np.testing.assert_array_equal(result, [1, 2, 3, 4])


def test_invoke_takes_integers_of_both_widths_and_dynamic_shapes(basic):
    (result,) = basic.invoke("scale", [np.arange(5, dtype="int32"), -3])
    np.testing.assert_array_equal(result, [0, -3, -6, -9, -12])
    assert basic.invoke("next", [2**40]) == [2**40 + 1]
    _raised("invalid_parameter", basic.invoke, "scale", [np.arange(5, dtype="int32"), 2**31])


def test_copied_arguments_are_left_alone(basic):
    kv = aligned((8, 64, 16))
    x = np.full((1, 1, 16), 3, "float32")
    doubled, written = basic.invoke("write", [kv, x, 5, 7])
    assert kv.sum() == 0
    assert written[5, 7, 0] == 3
    assert doubled[0] == 6


def test_consumed_argument_is_written_in_place(basic):
    kv = aligned((8, 64, 16))
    x = aligned((1, 1, 16))
    x[:] = 3
    _, written = basic.invoke("write", [kv, x, 5, 7], copy=False)
    assert written.ctypes.data == kv.ctypes.data
    expected = np.zeros((8, 64, 16), "float32")
    expected[5, 7] = 3
    np.testing.assert_array_equal(kv, expected)


def test_device_result_goes_on_in_place(basic):
    """A result is the device's own memory: passed on, it is neither copied in nor out."""
    kv = np.zeros((8, 64, 16), "float32")
    x = aligned((1, 1, 16))
    x[:] = 1
    _, first = basic.invoke("write", [kv, x, 0, 0])
    _, second = basic.invoke("write", [first, x, 7, 63], copy=False)
    assert second.ctypes.data == first.ctypes.data
    assert second[0, 0, 0] == second[7, 63, 15] == 1


def test_imported_array_lives_as_long_as_the_result(basic):
    kv = aligned((8, 64, 16))
    base = kv.base
    while base.base is not None:
        base = base.base
    import weakref

    alive = weakref.ref(base)
    _, written = basic.invoke("write", [kv, aligned((1, 1, 16)), 0, 0], copy=False)
    del kv, base
    gc.collect()
    assert alive() is not None
    del written
    gc.collect()
    assert alive() is None


def test_import_rejects_unaligned_memory(basic):
    kv = aligned((8, 64, 16), offset=16)
    error = _raised(
        "invalid_parameter", basic.invoke, "write", [kv, aligned((1, 1, 16)), 0, 0], copy=False
    )
    assert "64" in error.message


def test_import_rejects_read_only_memory(basic):
    """The call may write into it: nothing else would stop that."""
    kv = aligned((8, 64, 16))
    kv.flags.writeable = False
    arguments = [kv, aligned((1, 1, 16)), 0, 0]
    error = _raised("invalid_parameter", basic.invoke, "write", arguments, copy=False)
    assert "read-only" in error.message
    basic.invoke("write", arguments)


def test_result_outlives_program_and_device(compile_mlir):
    program = _core.Program(_core.Device(num_threads=1), str(compile_mlir(BASIC)))
    (result,) = program.invoke("add", [np.ones(4, "float32"), np.ones(4, "float32")])
    del program
    gc.collect()
    np.testing.assert_array_equal(result, [2, 2, 2, 2])


def test_parameters_are_used_in_the_mapped_archive(device, compile_mlir, tmp_path):
    import iree.runtime as rt

    archive = tmp_path / "weights.irpa"
    index = rt.ParameterIndex()
    index.add_buffer("weights", np.ones(NUM_WEIGHTS, "float32"))
    index.create_archive_file(str(archive))
    del index
    gc.collect()
    module = str(compile_mlir(PARAMETER))
    before = _anonymous_bytes()
    program = _core.Program(device, module, str(archive))
    (total,) = program.invoke("sum", [np.array(2, "float32")])
    assert total == 2 * NUM_WEIGHTS
    assert _anonymous_bytes() - before < NUM_WEIGHTS  # a quarter of one copy


def test_missing_parameter_is_named(device, compile_mlir, tmp_path):
    import iree.runtime as rt

    archive = tmp_path / "other.irpa"
    index = rt.ParameterIndex()
    index.add_buffer("other", np.ones(16, "float32"))
    index.create_archive_file(str(archive))
    error = _raised(
        "program_mismatch", _core.Program, device, str(compile_mlir(PARAMETER)), str(archive)
    )
    assert "weights" in error.message


def test_native_kernel_is_called(device, compile_mlir):
    text = KERNEL.replace("@KERNEL", "@pyvlm_rms_norm")
    program = _core.Program(device, str(compile_mlir(text)))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((3, 40)).astype("float32")
    w = generator.standard_normal(40).astype("float32")
    (y,) = program.invoke("norm", [x, w])
    expected = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_unknown_native_kernel_is_named(device, compile_mlir):
    module = str(compile_mlir(KERNEL.replace("@KERNEL", "@no_such_kernel")))
    error = _raised("program_mismatch", _core.Program, device, module)
    assert "no_such_kernel" in error.message


def test_runtime_message_is_kept_without_its_stack(basic):
    error = _raised("engine_failed", basic.invoke, "add", [np.ones(3, "float32")] * 2)
    assert "expected 4 but have 3" in error.message
    assert "add" in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([np.ones(4, "float32")], "takes 2 arguments, not 1"),
        ([np.ones(4, "float32"), 1], "is not an integer"),
        ([np.ones(4, "float32"), "x"], "not str"),
        ([np.ones(4, "float32"), np.ones(4, "complex64")], "complex64"),
        ([np.ones(4, "float32"), np.ones(8, "float32")[::2]], "C-contiguous"),
    ],
)
def test_wrong_arguments_are_invalid(basic, arguments, words):
    assert words in _raised("invalid_parameter", basic.invoke, "add", arguments).message


def test_tensor_for_an_integer_is_invalid(basic):
    assert (
        "not a tensor"
        in _raised("invalid_parameter", basic.invoke, "next", [np.ones(1, "int32")]).message
    )


def test_unknown_function_is_a_mismatch(basic):
    assert "nothing" in _raised("program_mismatch", basic.invoke, "nothing", []).message


@pytest.mark.parametrize("contents", [b"", b"not a module at all" * 10])
def test_file_that_is_no_module_is_a_mismatch(device, tmp_path, contents):
    path = tmp_path / "bad.vmfb"
    path.write_bytes(contents)
    assert "bad.vmfb" in _raised("program_mismatch", _core.Program, device, str(path)).message


def test_missing_and_broken_files_are_named(device, compile_mlir, tmp_path):
    module = str(compile_mlir(PARAMETER))
    absent = str(tmp_path / "absent.irpa")
    assert absent in _raised("program_mismatch", _core.Program, device, module, absent).message
    broken = tmp_path / "broken.irpa"
    broken.write_bytes(b"x" * 4096)
    error = _raised("program_mismatch", _core.Program, device, module, str(broken))
    assert "broken.irpa" in error.message


def _spec(**changes):
    fields = {
        "hidden_size": 8,
        "vocab_size": 16,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "num_slots": 2,
        "capacity": 32,
        "prefill": [_core.EntryPoint("prefill_8", 8, 32)],
        "decode": [_core.EntryPoint("decode_2", 2, 32)],
    }
    return _core.ModelSpec(**{**fields, **changes})


def test_program_without_the_functions_of_its_spec_is_a_mismatch(device, compile_mlir):
    module = str(compile_mlir(BASIC))
    error = _raised("program_mismatch", _core.Program, device, module, spec=_spec())
    assert "prefill_8" in error.message


def test_program_with_another_signature_is_a_mismatch(device, compile_mlir):
    module = str(compile_mlir(BASIC))
    spec = _spec(prefill=[_core.EntryPoint("add", 8, 32)])
    error = _raised("program_mismatch", _core.Program, device, module, spec=spec)
    assert "add" in error.message
    assert "rr -> r" in error.message


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_layers": -1}, "num_layers"),
        ({"prefill": []}, "prefill"),
        ({"decode": [_core.EntryPoint("decode_3", 3, 32)]}, "decode_3"),
        ({"prefill": [_core.EntryPoint("prefill_8", 8, 64)]}, "prefill_8"),
        ({"num_kv_heads": 2}, "num_heads"),
        ({"capacity": 2**31 - 1, "num_layers": 2**31 - 1, "head_dim": 64}, "KV cache"),
    ],
)
def test_impossible_spec_is_a_mismatch(device, compile_mlir, changes, word):
    module = str(compile_mlir(BASIC))
    error = _raised("program_mismatch", _core.Program, device, module, spec=_spec(**changes))
    assert word in error.message


def test_unknown_driver_lists_those_present():
    error = _raised("device_unavailable", _core.Device, "vulkan")
    assert "vulkan" in error.message
    assert "local-task" in error.message


@pytest.mark.parametrize("num_threads", [-1, 65])
def test_thread_count_out_of_range_is_invalid(num_threads):
    assert (
        _raised("invalid_parameter", _core.Device, num_threads=num_threads).param == "num_threads"
    )


def test_default_thread_count_is_the_available_cores():
    assert _core.Device().num_threads == _core.library_info()["cores"] >= 1


def test_calls_from_threads_are_serialised(basic):
    failures = []

    def work(number: int) -> None:
        for _ in range(50):
            (result,) = basic.invoke("scale", [np.arange(100, dtype="int32"), number])
            if not np.array_equal(result, np.arange(100) * number):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_invocation_releases_the_gil(device, compile_mlir, tmp_path):
    """Another Python thread makes progress while a call runs."""
    import iree.runtime as rt

    archive = tmp_path / "weights.irpa"
    index = rt.ParameterIndex()
    index.add_buffer("weights", np.ones(NUM_WEIGHTS, "float32"))
    index.create_archive_file(str(archive))
    program = _core.Program(device, str(compile_mlir(PARAMETER)), str(archive))
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    program.invoke("sum", [np.array(2, "float32")])
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert end - begin > 0.002, "the call is too short to tell"
    assert any(begin < at < end for at in ticks)


def test_native_codes_are_in_the_table():
    assert set(_core.error_codes()) <= set(ERROR_CODES)


def test_memory_is_returned_to_the_pool(compile_mlir):
    device = _core.Device(num_threads=1)
    program = _core.Program(device, str(compile_mlir(BASIC)))
    idle = device.used_bytes
    _, written = program.invoke(
        "write", [np.zeros((8, 64, 16), "float32"), aligned((1, 1, 16)), 0, 0]
    )
    del written
    gc.collect()
    assert device.used_bytes == idle
