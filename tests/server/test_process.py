"""`pyvlm serve` as a process: start, signals, exit status, what it prints. Media cases 37, 48."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyvlm.cli import serve
from pyvlm.cli.main import main
from pyvlm.engine import AsyncEngine
from pyvlm.errors import PyvlmError
from pyvlm.media.policy import MediaPolicy
from pyvlm.server.config import ServerConfig
from pyvlm.server.run import bind, run_server
from pyvlm.server.service import Service
from tests.server.conftest import eventually
from tests.server.pictures import image_part, text_part
from tests.server.process import (
    CHAT,
    CLIENT,
    COMMAND,
    HANG_S,
    PATH,
    Process,
    children,
    endless,
    gauge,
    is_alive,
    status,
)
from tests.server.raw import connection, post

pytestmark = pytest.mark.usefixtures("cache", "interruptible")


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    CLIENT.close()


@pytest.fixture
def process() -> Iterator[Process]:
    with Process("--log-format", "json") as process:
        assert process.is_ready(), process.lines
        yield process


def test_answers_and_ends_by_sigterm(process: Process) -> None:
    content = [image_part(), text_part()]
    body = {**CHAT, "messages": [{"role": "user", "content": content}], "temperature": 0}
    headers = {"x-request-id": "my-id"}
    answer = httpx.post(f"{process.url}{PATH}", json=body, headers=headers, timeout=HANG_S)
    assert answer.status_code == 200, answer.text
    refused = httpx.post(f"{process.url}{PATH}", json={**body, "n": 0}, timeout=HANG_S)
    assert refused.status_code == 400
    process.child.send_signal(signal.SIGTERM)
    assert process.end() == 0
    lines = [json.loads(line) for line in process.lines if line.startswith("{")]
    good, bad = [line for line in lines if line["event"] == "request" and line["path"] == PATH]
    assert good["request_id"] == "my-id"
    assert (good["outcome"], good["status"], good["images"]) == ("ok", 200, 1)
    assert good["image_positions"] == 19
    assert good["completion_tokens"] == 1
    for stage in ("queue", "fetch", "preprocess_wait", "decode_image", "transform", "encode"):
        assert good[f"{stage}_ms"] >= 0
    assert (bad["outcome"], bad["status"], bad["code"]) == ("error", 400, "invalid_parameter")
    assert "Hi" not in "".join(process.lines)


def test_health_tells_loading_then_ready() -> None:
    with Process() as process:
        seen: list[int | str] = []

        def is_over() -> bool:
            if not seen or seen[-1] != (now := status(process.url)):
                seen.append(status(process.url) if not seen else now)
            return seen[-1] == 200

        assert eventually(is_over, HANG_S), seen
        assert set(seen) <= {0, "loading", 200}


def test_case_37_drain_finishes_what_runs_and_refuses_the_rest(process: Process) -> None:
    url = process.url
    answers: list[httpx.Response] = []
    body = endless(url, stream=True, n=16)
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url}{PATH}", json=body, timeout=HANG_S))
    )
    thread.start()
    assert eventually(lambda: gauge(url, "pyvlm_requests_running") == 8)
    process.child.send_signal(signal.SIGTERM)
    seen = {status(url)}
    late = 0 if process.child.poll() is not None else _status_of_post(url)
    thread.join(HANG_S)
    assert process.end() == 0
    assert answers[0].text.endswith("data: [DONE]\n\n")
    assert seen <= {"draining", 0}
    assert late in (503, 0)


def _status_of_post(url: str) -> int:
    try:
        return CLIENT.post(f"{url}{PATH}", json=CHAT).status_code
    except httpx.HTTPError:
        return 0


def test_shutdown_timeout_cancels_what_is_left() -> None:
    with Process("--shutdown-timeout", "0") as process:
        assert process.is_ready()
        url = process.url
        body = endless(url, stream=True, n=8)
        with connection(url) as raw:
            raw.sendall(post(PATH, body))
            assert eventually(lambda: gauge(url, "pyvlm_requests_running") == 8)
            process.child.send_signal(signal.SIGTERM)
            text = b""
            while chunk := raw.recv(65536):
                text += chunk
        assert process.end() == 0
    assert b'"code":"draining"' in text
    assert b"[DONE]" not in text


def test_second_interrupt_stops_at_once(process: Process) -> None:
    url = process.url
    with connection(url) as raw:
        raw.sendall(post(PATH, endless(url, stream=True, n=16)))
        assert eventually(lambda: gauge(url, "pyvlm_requests_running") == 8)
        process.child.send_signal(signal.SIGINT)
        assert eventually(lambda: status(url) == "draining" or process.child.poll() is not None)
        process.child.send_signal(signal.SIGINT)
        assert process.end() in (130, 0)  # 0: everything had finished before


def test_interrupt_while_idle_ends_cleanly(process: Process) -> None:
    process.child.send_signal(signal.SIGINT)
    assert process.end() == 0
    assert not any("Traceback" in line for line in process.lines)


def test_case_37_a_bad_model_exits_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for model in (str(tmp_path / "none"), str(tmp_path)):
        result = subprocess.run(
            [*COMMAND, model, "--port", "0"],
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert result.returncode == 3, result.stderr
        assert "Traceback" not in result.stderr
        errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        assert len(errors) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "99999"],
        ["--host", "no such host"],
        ["--max-body-bytes", "0"],
        ["--max-ledger-bytes", "1000"],
        ["--request-timeout", "nan"],
        ["--api-key", ""],
        ["--api-key", "two words"],
        ["--api-key-file", "/nonexistent"],
        ["--served-model-name", ""],
        ["--model", "other"],
        ["--max-num-queued-reqs", "-1"],
        ["--allowed-image-formats", "EPS"],
        ["--preprocess-timeout", "0"],
        ["--preprocess-worker-bytes", "0"],
    ],
)
def test_wrong_flags(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything is started, so this process can do it."""
    assert main(["serve", "tiny", "--port", "0", *arguments]) == 2
    assert "[invalid_parameter]" in capsys.readouterr().err


def test_options_of_the_picture_workers() -> None:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    flags = ["--preprocess-timeout", "2.5", "--preprocess-worker-bytes", "1000000000"]
    chosen = serve._engine_options(parser.parse_args(["serve", *flags]))
    assert (chosen.preprocess_timeout_s, chosen.preprocess_worker_bytes) == (2.5, 10**9)
    default = serve._engine_options(parser.parse_args(["serve"]))
    assert (default.preprocess_timeout_s, default.preprocess_worker_bytes) == (10.0, 1 << 31)


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Process(port=port) as process:
            assert process.end() == 4
    told = "\n".join(process.lines)
    assert "[address_in_use]" in told
    assert f"cannot listen on 127.0.0.1 port {port}: another program does" in told


def test_help_tells_sizes_as_people_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for text in ("body (90 MiB)", "hold (1 GiB)", "worker (2 GiB)", "picture (20 MiB)",
                 "connections (1024)", "included (600)"):  # fmt: skip
        assert text in told
    assert "e+0" not in told


def test_keys_from_flag_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYVLM_API_KEY", "of-environment")
    (tmp_path / "keys").write_text("# comment\n\nof-file\n")
    with Process("--api-key", "of-flag", "--api-key-file", str(tmp_path / "keys")) as process:
        assert process.is_ready()
        for key, code in (("of-flag", 200), ("of-environment", 200), ("of-file", 200), ("x", 401)):
            headers = {"authorization": f"Bearer {key}"}
            response = httpx.get(f"{process.url}/version", headers=headers, timeout=HANG_S)
            assert response.status_code == code
    assert not any("no API key" in line for line in process.lines)


def test_open_host_without_key_is_warned_of() -> None:
    with Process("--host", "0.0.0.0", "--no-ui") as process:
        assert eventually(lambda: any("no API key" in line for line in process.lines), HANG_S)


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Process("--uds", str(path)) as process:
        assert eventually(lambda: any("ready:" in line for line in process.lines), HANG_S)
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://server") as client:
            assert client.get("/health", timeout=HANG_S).status_code == 200
        process.child.send_signal(signal.SIGTERM)
        assert process.end() == 0
    assert not path.exists()


def test_killed_server_leaves_no_process(process: Process) -> None:
    """Its workers notice; the next start is clean."""
    workers = children(process.child.pid)
    assert workers
    process.child.send_signal(signal.SIGKILL)
    process.child.wait(HANG_S)
    assert eventually(lambda: not any(is_alive(pid) for pid in workers))
    with Process() as again:
        assert again.is_ready()
        assert _status_of_post(again.url) == 200


def test_killed_worker_is_replaced(process: Process) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": [image_part(), text_part()]}]}
    for pid in children(process.child.pid):
        os.kill(pid, signal.SIGKILL)

    def works() -> bool:
        answer = httpx.post(f"{process.url}{PATH}", json=body, timeout=HANG_S)
        assert answer.status_code in (200, 429, 500), answer.text
        return answer.status_code == 200

    assert eventually(works)
    assert status(process.url) == 200


def test_a_load_that_gives_up_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    def load(give_up: threading.Event) -> AsyncEngine:
        os.kill(os.getpid(), signal.SIGTERM)
        assert give_up.wait(HANG_S)
        raise PyvlmError("told to stop while loading", code="draining")

    async def made() -> Service:
        return Service(ServerConfig(("x",)), MediaPolicy())

    with bind("127.0.0.1", 0, None) as listener:
        assert run_server(asyncio.run(made()), listener, load) == 0
    gc.collect()
    assert not [r for r in caplog.records if r.name == "asyncio" and r.levelname == "ERROR"]


def test_stop_while_loading_ends_soon() -> None:
    with Process() as process:
        assert process.url
        process.child.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.end() == 0
        assert time.monotonic() - start < 60
