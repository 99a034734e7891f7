"""Typed errors: one table from code to OpenAI error type, HTTP status and CLI exit status.

Every failure a user can see carries one of these codes. Native code throws `pyvlm::Error` with the
same code; the bindings turn it into `PyvlmError` through `from_native`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ERROR_CODES", "ErrorInfo", "PyvlmError", "from_native", "shown"]


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What a code means on the wire and on the command line."""

    type: str
    status: int
    exit_status: int


def _request(status: int = 400, exit_status: int = 2) -> ErrorInfo:
    return ErrorInfo("invalid_request_error", status, exit_status)


def _server(status: int, exit_status: int) -> ErrorInfo:
    return ErrorInfo("server_error", status, exit_status)


# Exit statuses: 2 the request or its input is wrong, 3 the model or its bundle is, 4 this
# installation or machine is, 5 the engine failed while running.
ERROR_CODES: dict[str, ErrorInfo] = {
    "empty_prompt": _request(),
    "invalid_parameter": _request(),
    "unsupported_parameter": _request(),
    "image_decode_failed": _request(),
    "image_fetch_failed": _request(),
    "image_count": _request(),
    "image_shape": _request(),
    "image_dtype": _request(),
    "non_finite": _request(),
    "placeholder_mismatch": _request(),
    "modality_unsupported": _request(),
    "model_unsupported": _request(),
    "media_policy_violation": _request(),
    "context_overflow": _request(),
    "chat_template_failed": _request(),
    "invalid_api_key": ErrorInfo("authentication_error", 401, 2),
    "model_not_found": _request(404, 3),
    "not_found": _request(404),
    "method_not_allowed": _request(405),
    "request_timeout": _request(408),
    "body_too_large": _request(413),
    "unsupported_media_type": _request(415),
    "queue_full": ErrorInfo("rate_limit_error", 429, 5),
    "model_invalid": _server(500, 3),
    "missing_tensor": _server(500, 3),
    "program_mismatch": _server(500, 3),
    "compile_failed": _server(500, 3),
    "cache_unusable": _server(500, 4),
    "address_in_use": _server(500, 4),
    "runtime_missing": _server(500, 4),
    "device_unavailable": _server(500, 4),
    "out_of_memory": _server(500, 4),
    "engine_failed": _server(500, 5),
    "engine_dead": _server(503, 5),
    "draining": _server(503, 5),
    "loading": _server(503, 5),
    "deadline": ErrorInfo("timeout_error", 504, 5),
}


class PyvlmError(Exception):
    """A failure with a fixed code.

    `message` is ours and safe to show to a client: it names the field, the limit and the value
    seen, never a library's exception text. `param` names the request field, if there is one.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        if code not in ERROR_CODES:
            raise ValueError(f"unknown error code {code!r}")
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    @property
    def info(self) -> ErrorInfo:
        return ERROR_CODES[self.code]

    def body(self) -> dict[str, dict[str, str | None]]:
        """The OpenAI error body."""
        return {
            "error": {
                "message": self.message,
                "type": self.info.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def __reduce__(self) -> tuple[object, tuple[str, str, str | None]]:
        return _rebuild, (self.message, self.code, self.param)


def shown(value: object) -> str:
    """The beginning of a caller's value, for a message."""
    try:
        return str(value)[:60]
    except ValueError:  # CPython spells no integer of more than 4300 digits
        return "a value with too many digits to show"


def _rebuild(message: str, code: str, param: str | None) -> PyvlmError:
    return PyvlmError(message, code=code, param=param)


def from_native(code: str, message: str, param: str) -> PyvlmError:
    """Called by the bindings for each `pyvlm::Error`; an empty `param` means none."""
    return PyvlmError(message, code=code, param=param or None)
