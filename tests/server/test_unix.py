"""The file of a Unix socket: left over, in use, replaced, impossible."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pyvlm.errors import PyvlmError
from pyvlm.server.run import bind
from pyvlm.server.unix import unlinked_at_exit


def refusal(path: Path, code: str = "invalid_parameter") -> str:
    with pytest.raises(PyvlmError) as caught:
        bind("", 0, str(path))
    assert (caught.value.code, caught.value.param) == (code, "uds")
    assert str(path) in caught.value.message
    return caught.value.message


def test_a_file_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    bind("", 0, str(path)).close()
    assert path.exists()
    with bind("", 0, str(path)) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        client.connect(str(path))


def test_a_file_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with bind("", 0, str(path)) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        assert "in use" in refusal(path, "address_in_use")
        client.connect(str(path))


def test_another_kind_of_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert "in use" in refusal(path, "address_in_use")
    assert path.read_text() == "text"


def test_impossible_paths(tmp_path: Path) -> None:
    assert "too long" in refusal(tmp_path / ("x" * 200))
    assert "No such file" in refusal(tmp_path / "none" / "socket")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_only_the_own_file_is_removed(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "socket"
    with bind("", 0, str(path)), unlinked_at_exit(str(path)):
        if is_replaced:
            path.rename(tmp_path / "old")
            bind("", 0, str(path)).close()
    assert path.exists() == is_replaced
