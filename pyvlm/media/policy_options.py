"""The media policy from the command line and the environment: a flag wins over a variable.

Each field has one row in OPTIONS; a flag's name and spelling are vLLM's where vLLM has one.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvlm.errors import PyvlmError
from pyvlm.media.policy import MediaPolicy
from pyvlm.sizes import size_text

ENVIRONMENT_PREFIX = "PYVLM_MEDIA_"


@dataclass(frozen=True, slots=True)
class MediaOption:
    """How one field of the policy is written outside of Python."""

    field: str
    flag: str
    metavar: str
    parse: Callable[[str], Any]  # raises ValueError
    help: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.field.upper()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _formats(text: str) -> tuple[str, ...]:
    return _names(text.upper())


def _ports(text: str) -> tuple[int, ...]:
    return tuple(int(name) for name in _names(text))


def _num_images(text: str) -> int:
    """`16`, `image=16` or `{"image": 16}`; other modalities may only be 0."""
    if text.strip().isdecimal():
        return int(text)
    counts = json.loads(text) if text.lstrip().startswith("{") else _pairs(text)
    number: int = counts.pop("image", MediaPolicy().max_images)
    if any(count != 0 for count in counts.values()):
        raise ValueError("only pictures are supported")
    return number


def _pairs(text: str) -> dict[str, int]:
    pairs = [item.partition("=") for item in _names(text)]
    return {name: int(count) for name, _, count in pairs}


OPTIONS = (
    MediaOption("max_image_bytes", "--max-image-bytes", "N", int, "bytes of a picture"),
    MediaOption(
        "max_images", "--limit-mm-per-prompt", "image=N", _num_images, "pictures of a request"
    ),
    MediaOption(
        "max_request_image_bytes", "--max-request-image-bytes", "N", int,
        "bytes of all pictures of a request",
    ),
    MediaOption("max_image_pixels", "--max-image-pixels", "N", int, "width times height"),
    MediaOption("max_image_side", "--max-image-side", "N", int, "pixels of the longer side"),
    MediaOption("max_image_frames", "--max-image-frames", "N", int, "frames that a file declares"),
    MediaOption(
        "allowed_formats", "--allowed-image-formats", "LIST", _formats, "TIFF may be added"
    ),
    MediaOption(
        "allowed_media_domains", "--allowed-media-domains", "LIST", _names,
        "hosts that pictures may be fetched from; * is any public host",
    ),
    MediaOption(
        "allowed_media_ports", "--allowed-media-ports", "LIST", _ports, "ports for fetching"
    ),
    MediaOption(
        "allowed_local_media_path", "--allowed-local-media-path", "DIR", Path,
        "directory of pictures that clients may name by file: URLs",
    ),
    MediaOption(
        "connect_timeout_s", "--media-connect-timeout", "S", float, "seconds to connect to a host"
    ),
    MediaOption(
        "fetch_timeout_s", "--media-fetch-timeout", "S", float, "seconds to fetch a picture"
    ),
    MediaOption("max_redirects", "--max-media-redirects", "N", int, "redirects of a fetch"),
)  # fmt: skip


def add_media_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the policy; an absent flag leaves it to the environment, then to the default."""
    group = parser.add_argument_group("pictures")
    defaults = MediaPolicy()
    for option in OPTIONS:
        group.add_argument(
            option.flag,
            dest=option.field,
            metavar=option.metavar,
            nargs="+" if option.metavar == "LIST" else None,
            action="extend" if option.metavar == "LIST" else "append",
            help=f"{option.help} ({_written(option.field, getattr(defaults, option.field))})",
        )


def policy_from_arguments(
    args: argparse.Namespace, environ: Mapping[str, str] | None = None
) -> MediaPolicy:
    """From flags made by `add_media_arguments`; lists may be repeated, of others the last counts.

    Flags that a command leaves out are taken from the environment all the same.
    """
    values = environment_values(os.environ if environ is None else environ)
    for option in OPTIONS:
        given = getattr(args, option.field, None)
        if given:
            text = ",".join(given) if option.metavar == "LIST" else given[-1]
            values[option.field] = _parsed(option, text, option.flag)
    return MediaPolicy(**values)


def environment_values(environ: Mapping[str, str]) -> dict[str, Any]:
    """The policy's fields that PYVLM_MEDIA_* variables give; one that we do not know is refused."""
    by_name = {option.variable: option for option in OPTIONS}
    values = {}
    for name, text in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        option = by_name.get(name)
        if option is None:
            raise PyvlmError(f"{name} is no variable of the policy", code="invalid_parameter")
        values[option.field] = _parsed(option, text, name)
    return values


def _parsed(option: MediaOption, text: str, name: str) -> Any:
    try:
        return option.parse(text)
    except (ValueError, RecursionError):
        raise PyvlmError(
            f"{name} takes {option.metavar}, not {text!r}",
            code="invalid_parameter",
            param=option.field,
        ) from None


def _written(field: str, value: object) -> str:
    if field.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
