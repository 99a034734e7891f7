"""What an operator chooses about the server; the engine's and the media policy's are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyvlm.errors import PyvlmError

MIB = 1 << 20
MAX_KEY_CHARS = 1024


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """model_names: what requests may call the model; the first is the one in answers."""

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    metrics_need_key: bool = True
    allowed_origins: tuple[str, ...] = ()
    has_page: bool = True
    max_body_bytes: int = 90 * MIB
    max_ledger_bytes: int = 1024 * MIB
    request_timeout_s: float = 600.0  # from the headers to the end of the answer
    body_timeout_s: float = 30.0  # longest silence while a body arrives
    body_total_timeout_s: float = 300.0  # for a whole body
    header_timeout_s: float = 20.0
    write_timeout_s: float = 60.0  # in which a client may read nothing of what waits for it
    shutdown_timeout_s: float = 60.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_ledger_bytes", "max_connections"):
            if getattr(self, name) < 1:
                raise _invalid(name, f"must be positive, not {getattr(self, name)}")
        if self.max_ledger_bytes < self.max_body_bytes:
            raise _invalid(
                "max_ledger_bytes",
                f"is {self.max_ledger_bytes}, less than max_body_bytes, {self.max_body_bytes}",
            )
        for name in (
            "request_timeout_s",
            "body_timeout_s",
            "body_total_timeout_s",
            "header_timeout_s",
            "write_timeout_s",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise _invalid(name, f"must be a positive number of seconds, not {value}")
        if not (math.isfinite(self.shutdown_timeout_s) and self.shutdown_timeout_s >= 0):
            raise _invalid("shutdown_timeout_s", "must be a number of seconds of at least 0")
        if not self.model_names or not all(self.model_names):
            raise _invalid("served_model_name", "must not be empty")
        for key in self.api_keys:
            if not key.isascii() or not key.isprintable() or " " in key or not key:
                raise _invalid("api_key", "must be printable ASCII without spaces")
            if len(key) > MAX_KEY_CHARS:
                raise _invalid("api_key", f"must have at most {MAX_KEY_CHARS} characters")

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.model_names:
            raise PyvlmError(
                f"the model {name[:80]!r} is not served here; it is {self.model_names[0]!r}",
                code="model_not_found",
                param="model",
            )


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


def key_lines(text: str) -> Sequence[str]:
    """Keys of a file: one a line; empty lines and those that begin with # do not count."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _invalid(name: str, problem: str) -> PyvlmError:
    return PyvlmError(f"{name} {problem}", code="invalid_parameter", param=name)
