"""`pyvlm COMMAND ...`. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from pyvlm import __version__
from pyvlm.errors import PyvlmError

COMMANDS = {
    "generate": "answer one prompt, with pictures",
    "compile": "compile a model into a bundle directory",
    "doctor": "check this installation and say what to do",
}
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other: one message, one code."""

    def error(self, message: str) -> NoReturn:
        raise PyvlmError(f"{self.prog}: {message}", code="invalid_parameter")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except PyvlmError as error:
        return _report(error, as_json="--json" in arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return 1


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
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
