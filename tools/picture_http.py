"""The pictures of picture_corpora as requests to a running server, an outcome of each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tools.picture_run import Outcome, reason_of

CLIENTS = 4
TIMEOUT_S = 120  # of one file
_SERVED, _REFUSED = 200, 400


def outcomes(url: str, files: Sequence[Path]) -> Iterator[Outcome]:
    """In the order of the files. An answer or a typed refusal (400 with a code) is right; any
    other status, silence and a broken connection are faults."""
    limits = httpx.Limits(max_connections=CLIENTS)
    with (
        httpx.Client(base_url=url, timeout=TIMEOUT_S, limits=limits) as client,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        yield from threads.map(lambda path: _outcome(client, model, path.read_bytes()), files)
        if client.get("/health").status_code != _SERVED:
            raise RuntimeError("the server is not ready any more")


def _outcome(client: httpx.Client, model: str, data: bytes) -> Outcome:
    image = {"url": "data:;base64," + base64.b64encode(data).decode()}
    content = [{"type": "image_url", "image_url": image}, {"type": "text", "text": "What is it?"}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
        "temperature": 0,
    }
    try:
        response = client.post("/v1/chat/completions", json=body)
    except httpx.TimeoutException:
        return Outcome("HANG", f"no answer in {TIMEOUT_S} s", 0, is_fault=True)
    except httpx.HTTPError as error:
        return Outcome("CRASH", type(error).__name__, 0, is_fault=True)
    if response.status_code == _SERVED:
        return Outcome("200", "answered", 0)
    error = response.json()["error"]
    name = f"{response.status_code} {error['code']}"
    is_fault = response.status_code != _REFUSED or not error["code"]
    return Outcome(name, reason_of(error["code"], error["message"]), 0, is_fault)
