"""What is left of a device after a native kernel has failed."""

from __future__ import annotations

import numpy as np
import pytest

from pyvlm import _core
from pyvlm.errors import PyvlmError


def function(name: str, kernel: str, *scalars: int) -> str:
    """A function of x [3, 40], w [40] that calls a kernel of two inputs and one output."""
    constants = "\n".join(f"%s{i} = arith.constant {s} : index" for i, s in enumerate(scalars))
    names = "".join(f"%s{i}, " for i in range(len(scalars)))
    indices = ", ".join(["index"] * (len(scalars) + 2))
    bindings = ", ".join(["memref<f32>, index"] * 3)
    metadata = "memref<f32>, index, index, index"
    return f"""
  stream.executable private @{name}_x {{
    stream.executable.export public @{name}_entry workgroups() -> (index, index, index) {{
      %c1 = arith.constant 1 : index
      stream.return %c1, %c1, %c1 : index, index, index
    }}
    builtin.module {{
      func.func private @{kernel}({bindings}, {indices}) attributes {{llvm.bareptr = true}}
      func.func @{name}_entry(%a: !stream.binding, %b: !stream.binding, %c: !stream.binding) {{
        %c0 = arith.constant 0 : index
        {constants}
        %id = stream.dispatch.workgroup.id[0] : index
        %count = stream.dispatch.workgroup.count[0] : index
        %x = stream.binding.subspan %a[%c0] : !stream.binding -> memref<120xf32>
        %w = stream.binding.subspan %b[%c0] : !stream.binding -> memref<40xf32>
        %y = stream.binding.subspan %c[%c0] : !stream.binding -> memref<120xf32>
        %xp, %xo, %x2, %x3 = iree_codegen.extract_strided_metadata %x
            : memref<120xf32> -> {metadata}
        %wp, %wo, %w2, %w3 = iree_codegen.extract_strided_metadata %w
            : memref<40xf32> -> {metadata}
        %yp, %yo, %y2, %y3 = iree_codegen.extract_strided_metadata %y
            : memref<120xf32> -> {metadata}
        func.call @{kernel}(%xp, %xo, %wp, %wo, %yp, %yo, {names}%id, %count)
            : ({bindings}, {indices}) -> ()
        return
      }}
    }}
  }}
  func.func @{name}(%x: tensor<3x40xf32>, %w: tensor<40xf32>) -> tensor<3x40xf32> {{
    %0 = flow.dispatch @{name}_x::@{name}_entry(%x, %w)
        : (tensor<3x40xf32>, tensor<40xf32>) -> tensor<3x40xf32>
    return %0 : tensor<3x40xf32>
  }}
"""


# The second kernel asks for scratch memory of 2**50 floats and gets none.
MODULE = f"""
module @model {{
{function("good", "pyvlm_rms_norm", 3, 40, 925353388)}
{function("bad", "pyvlm_attn_full", 1, 1, 1, 2**50, 0)}
}}
"""
ARGUMENTS = [np.ones((3, 40), np.float32), np.ones(40, np.float32)]


@pytest.fixture
def path(compile_mlir) -> str:
    return str(compile_mlir(MODULE))


def _lost(program: object, name: str) -> str:
    with pytest.raises(PyvlmError) as caught:
        program.invoke(name, ARGUMENTS)
    assert caught.value.code == "device_unavailable"
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_failed_kernel_loses_the_device(path: str) -> None:
    """The runtime keeps the failure: nothing on this device runs any more. It is said at once."""
    device = _core.Device(num_threads=2)
    program, other = _core.Program(device, path), _core.Program(device, path)
    program.invoke("good", ARGUMENTS)
    assert "bad" in _lost(program, "bad")
    assert "runs nothing more" in _lost(program, "good")
    assert "runs nothing more" in _lost(other, "good")


def test_another_device_goes_on(path: str) -> None:
    lost, sound = _core.Device(num_threads=1), _core.Device(num_threads=1)
    program = _core.Program(sound, path)
    _lost(_core.Program(lost, path), "bad")
    (result,) = program.invoke("good", ARGUMENTS)
    np.testing.assert_allclose(result, 1, rtol=1e-4)
