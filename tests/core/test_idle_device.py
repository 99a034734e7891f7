"""A device without work leaves the processor to others: its workers spin shortly, then sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyvlm import _core

MODULE = """
module @model {
  func.func @twice(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
    %y = arith.addf %x, %x : tensor<64x64xf32>
    return %y : tensor<64x64xf32>
  }
}
"""


def test_workers_sleep_soon_after_a_call(compile_mlir: Callable[[str], Path]) -> None:
    """The bound is far above the limit of 50 us, and far below what one spinning worker takes."""
    program = _core.Program(_core.Device(num_threads=2), str(compile_mlir(MODULE)))
    values = np.ones((64, 64), np.float32)
    cpu_s = 0.0
    for _ in range(5):
        assert (program.invoke("twice", [values])[0] == 2).all()
        before = time.process_time()
        time.sleep(0.2)
        cpu_s += time.process_time() - before
    assert cpu_s < 0.2
