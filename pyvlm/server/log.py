"""Logging of `pyvlm serve`: one line per finished request, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from pyvlm.server.record import RequestRecord

logger = logging.getLogger("pyvlm.server")
QUIET_PATHS = ("/health", "/health/live", "/metrics")
_FIELDS = "pyvlm_fields"


def log_request(record: RequestRecord) -> None:
    level = logging.DEBUG if record.path in QUIET_PATHS else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "request", extra={_FIELDS: record.fields()})


def log_event(event: str, fields: Mapping[str, object]) -> None:
    logger.info(event, extra={_FIELDS: dict(fields)})


def configure_logging(form: Literal["text", "json"], stream: TextIO) -> None:
    """For the command alone: a library leaves its host's logging as it is."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name, level in (("pyvlm", logging.INFO), ("uvicorn", logging.CRITICAL)):
        of_name = logging.getLogger(name)
        of_name.handlers[:] = [handler]
        of_name.setLevel(level)
        of_name.propagate = False


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {})
        told = "".join(f" {name}={_plain(value)}" for name, value in fields.items())
        line = f"{_time(record)} {record.levelname.lower()} {record.getMessage()}{told}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _plain(value: Any) -> str:
    """One word: what a client chose, as a path, cannot break the line."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value:
        return value
    return json.dumps(value)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
