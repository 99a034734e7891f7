"""Sends one request and notes when each piece of its answer came."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from pyvlm.bench.options import Target
from pyvlm.bench.record import RequestRecord
from pyvlm.bench.workload import LoadRequest

MAX_LINE_BYTES = 1 << 20  # of an event
MAX_DETAIL = 300


def open_session(target: Target) -> aiohttp.ClientSession:
    """No limit of connections: the schedule alone decides how many requests are open."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        headers={"Content-Type": "application/json", **target.headers},
        read_bufsize=MAX_LINE_BYTES,
    )


async def send(
    session: aiohttp.ClientSession, target: Target, request: LoadRequest, due: float, zero: float
) -> RequestRecord:
    """Never raises for what the server or the network does: that is in the record."""
    record = RequestRecord(request.index, request.num_images, due)
    record.sent = time.perf_counter() - zero
    try:
        async with session.post(target.url, data=request.payload) as response:
            if response.status == 200:
                await _read_stream(response, record, zero)
            else:
                _fail_by_body(record, response.status, await response.text())
    except TimeoutError:
        record.error = "timeout"
    except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
        record.error = type(error).__name__
        record.error_detail = str(error)[:MAX_DETAIL]
    record.ended = time.perf_counter() - zero
    return record


async def _read_stream(
    response: aiohttp.ClientResponse, record: RequestRecord, zero: float
) -> None:
    async for data in _events(response):
        try:
            _take(data, record, time.perf_counter() - zero)
        except (AttributeError, TypeError, ValueError):
            record.error = "malformed_event"
        if record.error is not None:
            return
    if record.finish_reason is None:
        record.error = "incomplete_stream"


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in response.content:
        data = line.strip()
        if not data.startswith(b"data:"):
            continue  # blank lines, comments, event names
        data = data[5:].strip()
        if data == b"[DONE]":
            return
        yield data


def _take(data: bytes, record: RequestRecord, at: float) -> None:
    event = json.loads(data)
    if event.get("error"):
        record.error, record.error_detail = _error_of(event, "error_event")
        return
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or choice.get("text"):
            record.pieces.append(at)
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens")
        record.completion_tokens = usage.get("completion_tokens")


def _fail_by_body(record: RequestRecord, status: int, text: str) -> None:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    name, detail = _error_of(body, text)
    record.error = f"http_{status}" + (f"_{name}" if name else "")
    record.error_detail = detail


def _error_of(body: Any, fallback: str) -> tuple[str, str]:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return "", fallback[:MAX_DETAIL]
    name = error.get("code") or error.get("type") or "error"
    return str(name), str(error.get("message"))[:MAX_DETAIL]
