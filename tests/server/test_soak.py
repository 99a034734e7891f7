"""A small soak; the whole is `python -m tools.soak`."""

from __future__ import annotations

import os
import socket

import pytest

from tests.server.conftest import Running
from tools import soak


def test_mixed_requests_end_as_they_should(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is in this process, so what the clients leave open would be seen too."""
    flags = ["--requests", "50", "--clients", "8", "--repeats", "2", "--seed", "3"]
    status = soak.main(["--url", server.url, "--pid", str(os.getpid()), *flags])
    told = capsys.readouterr().out
    assert status == 0, told
    assert told.count(" descriptors, ") == 2


def test_a_descriptor_that_stays_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_SETTLE_S", 0)
    watched = soak.Watched(os.getpid())
    assert watched.problems() == []
    with socket.socket():
        (problem,) = watched.problems()
        assert "open descriptors" in problem
    assert watched.problems() == []
