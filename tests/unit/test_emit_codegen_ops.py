"""Every graph operation under the codegen lowering, against numpy."""

from __future__ import annotations

import pytest

from pyvlm.emit.codegen import CodegenOps
from tests.reference.op_cases import OpCase, op_cases, op_module, op_params, op_weights
from tests.reference.runtime import CompiledModule

PARAMS = op_params("codegen", "f16")
WEIGHTS = op_weights(PARAMS)
CASES = list(op_cases(WEIGHTS, "f16"))


@pytest.fixture(scope="module")
def compiled() -> CompiledModule:
    mlir = op_module(CodegenOps(), PARAMS, "f16").text()
    return CompiledModule(mlir, "codegen", PARAMS, WEIGHTS)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_op(compiled: CompiledModule, case: OpCase) -> None:
    case.compare(compiled.invoke(case.function, *case.arguments))
