"""`pyvlm COMMAND ...`. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from pyvlm import __version__
from pyvlm.errors import PyvlmError

COMMANDS = {
    "generate": "answer one prompt, with pictures",
    "compile": "compile a model into a bundle directory",
    "serve": "serve a model over HTTP, as OpenAI's API",
    "bench": "measure a running server",
    "doctor": "check this installation and say what to do",
}
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_NO_OUTPUT = 1


class _Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other: one message, one code. Names are not abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise PyvlmError(f"{self.prog}: {message}", code="invalid_parameter")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # this process is the command's
        _prepare_streams()
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run_reporting(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return EXIT_NO_OUTPUT
    except OSError as error:  # files that are read raise PyvlmError: what is left is the output
        _drop_stdout()
        sys.stderr.write(f"error: the answer cannot be written: {error.strerror or error}\n")
        return EXIT_NO_OUTPUT


def _run_reporting(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except PyvlmError as error:
        return _report(error, as_json="--json" in arguments)


def _prepare_streams() -> None:
    """A closed stream is as good as /dev/null; no text is beyond an output's encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Children and temporary files are cleaned up on the way out."""
    del number, frame
    sys.exit(EXIT_TERMINATED)


def _run(arguments: list[str]) -> int:
    args = _parser(arguments[0] if arguments else "").parse_args(arguments)
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def _parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(prog="pyvlm", description="Vision-language models on the IREE runtime.")
    parser.add_argument("--version", action="version", version=f"pyvlm {__version__}")
    subparsers = parser.add_subparsers(
        metavar="COMMAND", required=True, parser_class=_Parser, title="commands"
    )
    for name, text in COMMANDS.items():
        if name == command:
            importlib.import_module(f"pyvlm.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text)
    return parser


def _report(error: PyvlmError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(error.body(), ensure_ascii=False), flush=True)
    sys.stderr.write(f"error: {error.message} [{error.code}]\n")
    return error.info.exit_status


def _drop_stdout() -> None:
    """The reader went away: nothing of what is buffered can be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
