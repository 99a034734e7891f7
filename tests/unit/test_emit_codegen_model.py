"""Whole small models under the codegen lowering, against numpy, in iree.runtime."""

from __future__ import annotations

import functools

import pytest

from pyvlm.emit.layout import parameters
from pyvlm.emit.program import emit
from tests.reference import model_cases
from tests.reference.model_cases import (
    DECODES,
    INT8,
    MODELS,
    PREFILLS,
    VALID,
    DecodeCase,
    PrefillCase,
)
from tests.reference.runtime import CompiledModule

TOWERS = [name for name, model in MODELS.items() if model.config.vision]


@functools.cache
def compiled(name: str) -> CompiledModule:
    """Once per model and test run."""
    model = (MODELS | INT8)[name]
    options = model.options("codegen")
    params = parameters(model.config, "codegen", model.capacity)
    mlir = emit(model.config, options).mlir
    return CompiledModule(mlir, "codegen", params, model.weights)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in PREFILLS.items() for case in cases], ids=str
)
def test_prefill(name: str, case: PrefillCase) -> None:
    model_cases.check_prefill(MODELS[name], "codegen", compiled(name).invoke, case)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in DECODES.items() for case in cases], ids=str
)
def test_decode(name: str, case: DecodeCase) -> None:
    model_cases.check_decode(MODELS[name], "codegen", compiled(name).invoke, case)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_then_decode(name: str) -> None:
    model_cases.check_chunks(MODELS[name], "codegen", compiled(name).invoke)


@pytest.mark.parametrize("valid", VALID, ids=str)
@pytest.mark.parametrize("name", TOWERS)
def test_tower(name: str, valid: tuple[int, int]) -> None:
    model_cases.check_tower(MODELS[name], compiled(name).invoke, valid)


@pytest.mark.parametrize("name", TOWERS)
def test_widening(name: str) -> None:
    model_cases.check_widening(MODELS[name], compiled(name).invoke)


@pytest.mark.parametrize("name", ["tied-int8", pytest.param("untied-int8", marks=pytest.mark.slow)])
def test_int8_weights(name: str) -> None:
    """As exact as the others: the reference has the weights that the levels stand for."""
    model, invoke = INT8[name], compiled(name).invoke
    plain = name.replace("int8", model.kv_dtype)
    model_cases.check_prefill(model, "codegen", invoke, PREFILLS[plain][1])
    model_cases.check_decode(model, "codegen", invoke, DECODES[plain][1])
    if model.config.vision is not None:
        model_cases.check_tower(model, invoke, VALID[1])
