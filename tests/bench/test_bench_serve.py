"""`pyvlm bench serve` against a small server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from load_target import Exchange, Server, answer_well, chunk, event, stream

from pyvlm.cli.main import main

pytestmark = pytest.mark.timeout(120)


def arguments(server: Server, *more: str) -> list[str]:
    return ["bench", "serve", "--base-url", server.url, "--disable-tqdm", "--num-warmups", "0",
            "--random-input-len", "5", "--random-output-len", "4", *more]  # fmt: skip


def bench(
    server: Server, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0
) -> dict[str, Any]:
    assert main(arguments(server, "--json", *more)) == status
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_closed_loop_keeps_its_clients_busy(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    open_at_once: list[int] = []

    async def wait_for_three(exchange: Exchange) -> web.StreamResponse:
        await exchange.server.wait_for_requests(3)
        await asyncio.sleep(0.2)  # time for a fourth to come too early
        open_at_once.append(len(exchange.server.bodies))
        return await answer_well(exchange)

    server.answer = wait_for_three
    result = bench(server, capsys, "--num-prompts", "12", "--max-concurrency", "3")
    assert (result["completed"], result["failed"]) == (12, 0)
    assert open_at_once[0] == 3 == result["max_concurrent_requests"]
    assert result["total_output_tokens"] == 48
    assert result["total_input_tokens"] == 12 * 11
    assert result["model"] == "the-model" == server.bodies[0]["model"]


def test_open_loop_does_not_wait_for_answers(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    async def after_all(exchange: Exchange) -> web.StreamResponse:
        await exchange.server.wait_for_requests(10)
        return await answer_well(exchange)

    server.answer = after_all
    result = bench(server, capsys, "--num-prompts", "10", "--request-rate", "100")
    assert result["completed"] == 10
    assert server.max_open == 10


def test_times_of_one_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The role alone is no first token; a piece that comes late is seen late."""

    async def slow(exchange: Exchange) -> web.StreamResponse:
        response = await stream(exchange, chunk())
        await asyncio.sleep(0.3)
        await response.write(chunk("a"))
        await asyncio.sleep(0.2)
        await response.write(chunk("b", finish_reason="stop"))
        return response

    server.answer = slow
    result = bench(server, capsys, "--num-prompts", "1")
    assert result["mean_ttft_ms"] >= 300
    assert result["mean_itl_ms"] >= 190
    assert result["mean_e2el_ms"] >= result["mean_ttft_ms"] + result["mean_itl_ms"]
    assert result["num_without_usage"] == 1
    assert result["total_output_tokens"] == 2


def test_pictures_are_sent(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(
        server, capsys, "--num-prompts", "10", "--image-fraction", "0.5",
        "--random-mm-bucket-config", "{(16, 16, 1): 1.0}",
    )  # fmt: skip
    kinds = [isinstance(body["messages"][0]["content"], list) for body in server.bodies]
    assert 0 < sum(kinds) < 10
    assert result["by_kind"]["image"]["completed"] == sum(kinds)


def test_completions_endpoint_and_headers(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def text(exchange: Exchange) -> web.StreamResponse:
        done = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}
        return await stream(exchange, event(done), b"data: [DONE]\n\n")

    server.answer = text
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    bench(server, capsys, "--num-prompts", "1", "--backend", "openai", "--header", "X-Test=a=b")
    assert server.paths == ["/v1/completions"]
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.headers[0]["X-Test"] == "a=b"


def test_warm_up_is_sent_but_not_counted(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bench(server, capsys, "--num-prompts", "2", "--num-warmups", "3")
    assert result["completed"] == 2
    assert len(server.bodies) == 5


def _body(status: int, error: object) -> Any:
    async def answer(_: Exchange) -> web.StreamResponse:
        return web.json_response(error, status=status)

    return answer


def _pieces(*pieces: bytes) -> Any:
    async def answer(exchange: Exchange) -> web.StreamResponse:
        return await stream(exchange, *pieces)

    return answer


async def _cut(exchange: Exchange) -> web.StreamResponse:
    response = await stream(exchange, chunk("x"))
    assert exchange.request.transport is not None
    exchange.request.transport.abort()
    return response


FULL = {"error": {"message": "come back later", "type": "rate_limit_error", "code": "queue_full"}}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_body(429, FULL), "http_429_queue_full"),
        (_body(500, ["no", "object"]), "http_500"),
        (_pieces(chunk("x"), event(FULL)), "queue_full"),
        (_pieces(chunk("x")), "incomplete_stream"),
        (_pieces(b"data: {no json\n\n"), "malformed_event"),
        (_pieces(event([1])), "malformed_event"),
        (_pieces(event({"choices": [3]})), "malformed_event"),
        (_pieces(b"data: " + b"x" * (3 << 20)), "LineTooLong"),
        (_cut, "ClientPayloadError"),
    ],
)
def test_failures_are_counted_by_name(
    server: Server, capsys: pytest.CaptureFixture[str], answer: Any, error: str
) -> None:
    server.answer = answer
    result = bench(server, capsys, "--num-prompts", "2", status=5)
    assert result["errors"] == {error: 2}
    assert result["completed"] == 0


def test_time_out(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    async def never(exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(60)
        return await answer_well(exchange)

    server.answer = never
    result = bench(server, capsys, "--num-prompts", "1", "--request-timeout", "0.2", status=5)
    assert result["errors"] == {"timeout": 1}


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--port", "1"]) == 4
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--num-prompts", "0"],
        ["--request-rate", "0"],
        ["--goodput", "itl:5"],
        ["--goodput", "ttft"],
        ["--metric-percentiles", "101"],
        ["--percentile-metrics", "latency"],
        ["--random-mm-bucket-config", "512x512"],
        ["--extra-body", "[]"],
        ["--header", "name"],
        ["--backend", "openai", "--image-fraction", "0.5"],
    ],
)
def test_wrong_arguments(server: Server, wrong: list[str]) -> None:
    assert main(arguments(server, *wrong)) == 2
    assert server.bodies == []


def test_files(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "run.png"
    more = ["--num-prompts", "3", "--save-detailed", "--result-dir", str(tmp_path / "new"),
            "--result-filename", "run.json", "--plot", str(plot),
            "--goodput", "ttft:60000"]  # fmt: skip
    assert main(arguments(server, *more)) == 0
    out = capsys.readouterr().out
    assert "goodput (requests/s)" in out
    assert "time to first token (ms)" in out
    saved = json.loads((tmp_path / "new" / "run.json").read_text())
    assert len(saved["requests"]) == 3
    assert len(saved["requests"][0]["itl_s"]) == 3
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("interruptible")
def test_interrupted_run_reports_what_it_has(server: Server, tmp_path: Path) -> None:
    async def two_only(exchange: Exchange) -> web.StreamResponse:
        if len(exchange.server.bodies) > 2:
            os.kill(process.pid, signal.SIGINT)
            await asyncio.sleep(60)
        return await answer_well(exchange)

    server.answer = two_only
    command = [sys.executable, "-m", "pyvlm.cli.main", *arguments(server), "--max-concurrency",
               "1", "--save-result", "--result-dir", str(tmp_path),
               "--result-filename", "r.json"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["interrupted"] is True
    assert saved["completed"] == 2
    assert "completed requests" in out
