"""What requests hold: a bound for one alone, and the table that an operator can ask for."""

from __future__ import annotations

import json
import logging
import os
import signal

import pytest

from pyvlm.server.leases import log_leases
from tests.server.conftest import Host, Running, eventually
from tests.server.pictures import data_url, image_part, picture
from tests.server.process import Process
from tests.server.raw import connection, post

PATH = "/v1/chat/completions"


def test_a_request_that_alone_is_beyond_the_ledger_is_refused_for_good(host: Host) -> None:
    """Body and picture are held together: no 429, which would ask for another try."""
    padded = picture("red") + bytes(30_000)
    body = len(data_url(padded)) + 1000
    fits = host.serve(max_body_bytes=body, max_ledger_bytes=body + len(padded))
    tight = host.serve(max_body_bytes=body, max_ledger_bytes=body + 1000)
    content = [{"type": "image_url", "image_url": data_url(padded)}]
    response = tight.chat(content, max_tokens=1)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert "retry-after" not in response.headers
    assert f"the byte ledger is {body + 1000} bytes" in response.text
    assert fits.chat(content, max_tokens=1).status_code == 200
    assert tight.chat([image_part()], max_tokens=1).status_code == 200
    assert tight.becomes_idle()


def test_the_table_of_leases_names_who_holds_what(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"model": "tiny"}).encode() + b" " * 5000
    with connection(server.url) as raw, caplog.at_level(logging.INFO, "pyvlm.server"):
        raw.sendall(post(PATH, body, "x-request-id: half-a-body")[:-1])
        assert eventually(lambda: server.service.ledger.used_bytes > 0)
        caplog.clear()
        server.run(_logged(server))
        lines = [record for record in caplog.records if record.getMessage() == "lease"]
        (line,) = [record.__dict__["pyvlm_fields"] for record in lines]
        assert line == {"kind": "ledger", "owner": "body of half-a-body", "bytes": len(body) - 1}
        (held,) = [record for record in caplog.records if record.getMessage() == "held"]
        fields = held.__dict__["pyvlm_fields"]
        assert (fields["active"], fields["ledger_bytes"]) == (0, len(body) - 1)


async def _logged(server: Running) -> None:
    log_leases(server.service)


def test_a_signal_asks_for_the_table(interruptible: None) -> None:
    """From the start on; the server goes on."""
    del interruptible
    with Process("--log-format", "json", "--preprocess-workers", "0") as process:
        assert process.url
        os.kill(process.child.pid, signal.SIGUSR1)
        assert eventually(lambda: any('"event": "held"' in line for line in process.lines), 60)
        assert process.child.poll() is None
        os.kill(process.child.pid, signal.SIGTERM)
        assert process.end() == 0
