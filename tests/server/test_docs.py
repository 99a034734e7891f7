"""What the documentation of serving and testing names exists."""

from __future__ import annotations

import re
from pathlib import Path

from pyvlm.errors import ERROR_CODES
from pyvlm.server.schema import (
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETIONS,
    ChatRequest,
    CompletionRequest,
)

ROOT = Path(__file__).parents[2]


def test_tests_of_the_minimum_list_exist() -> None:
    text = (ROOT / "docs/testing.md").read_text()
    python = re.findall(r"`(tests/[\w/.]+)::(\w+)`", text)
    native = re.findall(r"`(csrc/[\w/.]+): ([^`]+)`", text)
    assert len(python) > 30
    assert len(native) > 10
    for path, name in python:
        assert f"def {name}(" in (ROOT / path).read_text(), (path, name)
    for path, title in native:
        assert f'TEST_CASE("{title}")' in (ROOT / path).read_text(), (path, title)


def test_every_code_of_a_status_is_in_the_table() -> None:
    text = (ROOT / "docs/serving.md").read_text()
    rows = re.findall(r"^\| (\d{3})[^|]*\|([^|]+)\|$", text, re.M)
    told = {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert told.items() <= {code: info.status for code, info in ERROR_CODES.items()}.items()
    start_only = "model_invalid missing_tensor program_mismatch compile_failed cache_unusable"
    machine = "address_in_use runtime_missing device_unavailable out_of_memory"
    assert set(ERROR_CODES) - set(told) == {*start_only.split(), *machine.split()}


def test_every_field_is_in_the_tables() -> None:
    text = (ROOT / "docs/serving.md").read_text()
    named = set(re.findall(r"`([a-z_]+)\*?`", text))
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"stream_options"}
    for name in {*fields, *NEUTRAL_CHAT, *NEUTRAL_COMPLETIONS}:
        assert name in named or name.startswith("guided_"), name
