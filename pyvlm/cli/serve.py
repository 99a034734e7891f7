"""`pyvlm serve`: the HTTP server."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pyvlm.build import TINY
from pyvlm.cli.compile import add_build_arguments, build_options
from pyvlm.cli.progress import ConsoleProgress
from pyvlm.engine_options import EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.media.policy_options import add_media_arguments, policy_from_arguments
from pyvlm.media.preprocessor import default_num_workers
from pyvlm.server.config import ServerConfig, is_loopback, key_lines
from pyvlm.sizes import size_text

if TYPE_CHECKING:
    import threading

    from pyvlm.engine import AsyncEngine
    from pyvlm.media.policy import MediaPolicy

    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_KEY_VARIABLE = "PYVLM_API_KEY"


def add_parser(subparsers: _Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's API",
        description="Serves MODEL over HTTP: OpenAI's API, a chat page, metrics.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="tiny, DIR or FILE.gguf (tiny)")
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same as a flag")
    parser.add_argument(
        "--served-model-name", nargs="+", default=[], metavar="NAME",
        help="names that requests may use; the first is the one in answers (last part of MODEL)",
    )  # fmt: skip
    _add_network(parser.add_argument_group("network"))
    _add_access(parser.add_argument_group("access"))
    _add_limits(parser.add_argument_group("limits"))
    _add_engine(parser.add_argument_group("engine"))
    add_media_arguments(parser)
    add_build_arguments(parser)
    parser.set_defaults(run=run)


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="(127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="0: any free one (8000)")
    group.add_argument("--uds", metavar="PATH", help="a Unix socket instead of host and port")
    group.add_argument("--no-ui", action="store_true", help="no chat page at /")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="(text)")


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help=f"a key that clients may use; repeatable; {_KEY_VARIABLE} adds one (none: open)",
    )  # fmt: skip
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one a line")
    group.add_argument("--metrics-without-key", action="store_true", help="/metrics wants no key")
    group.add_argument(
        "--allowed-origins", nargs="+", default=[], metavar="ORIGIN",
        help="origins of web pages that may call; * is any (none: CORS is off)",
    )  # fmt: skip


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-num-queued-reqs", type=int, default=256, metavar="N",
        help="unfinished generations beyond --max-num-seqs (256)",
    )  # fmt: skip
    for flag, field, text in (
        ("--max-body-bytes", "max_body_bytes", "bytes of a request's body"),
        ("--max-ledger-bytes", "max_ledger_bytes", "bytes that all requests together may hold"),
        ("--max-connections", "max_connections", "open connections"),
        ("--request-timeout", "request_timeout_s", "seconds for a request, answer included"),
        ("--body-timeout", "body_timeout_s", "seconds of silence while a body arrives"),
        ("--body-total-timeout", "body_total_timeout_s", "seconds for a whole body"),
        ("--header-timeout", "header_timeout_s", "seconds until a request's headers are whole"),
        ("--write-timeout", "write_timeout_s", "seconds for a client that does not read"),
        ("--shutdown-timeout", "shutdown_timeout_s", "seconds to finish requests after SIGTERM"),
    ):
        default = getattr(ServerConfig(("x",)), field)
        shown = size_text(default) if field.endswith("_bytes") else f"{default:g}"
        group.add_argument(
            flag, dest=field, type=type(default), default=default, help=f"{text} ({shown})",
            metavar="S" if field.endswith("_s") else "N",
        )  # fmt: skip


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--threads", type=int, default=0, metavar="N", help="0: one per core (0)")
    group.add_argument(
        "--step-budget-ms", type=float, default=100.0, metavar="MS",
        help="longest prompt work between two decode steps (100)",
    )  # fmt: skip
    group.add_argument(
        "--preprocess-workers", type=int, metavar="N",
        help="processes that decode pictures; 0: in this one (a quarter of the cores)",
    )  # fmt: skip
    group.add_argument(
        "--preprocess-timeout", dest="preprocess_timeout_s", type=float, metavar="S",
        default=EngineOptions().preprocess_timeout_s,
        help=f"seconds for a picture in a worker ({EngineOptions().preprocess_timeout_s:g})",
    )  # fmt: skip
    group.add_argument(
        "--preprocess-worker-bytes", type=int, metavar="N",
        default=EngineOptions().preprocess_worker_bytes,
        help=f"private memory of a worker ({size_text(EngineOptions().preprocess_worker_bytes)})",
    )  # fmt: skip
    group.add_argument("--slab-bytes", type=int, metavar="N", help="shared memory of the workers")
    group.add_argument(
        "--image-cache-bytes", type=int, default=0, metavar="N",
        help="encoded pictures kept for the next request (0: off)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    model = _model(args)
    config, policy = _config(args, model), policy_from_arguments(args)
    options = _engine_options(args)
    from pyvlm.server.log import configure_logging, logger
    from pyvlm.server.run import bind, run_server
    from pyvlm.server.service import Service
    from pyvlm.server.unix import unlinked_at_exit

    with bind(args.host, args.port, args.uds) as listener:
        configure_logging(args.log_format, sys.stderr)
        if not (args.uds or is_loopback(args.host) or config.api_keys):
            logger.warning("%s is no loopback address and no API key is set", args.host)

        def load(give_up: threading.Event) -> AsyncEngine:
            return _load(model, args, options, policy, give_up)

        with unlinked_at_exit(args.uds) if args.uds else nullcontext():
            return run_server(Service(config, policy), listener, load)


def _load(
    model: str,
    args: argparse.Namespace,
    options: EngineOptions,
    policy: MediaPolicy,
    give_up: threading.Event,
) -> AsyncEngine:
    from pyvlm.engine import AsyncEngine

    console = ConsoleProgress(sys.stderr)

    def progress(stage: str, done: int, total: int, seconds: float) -> None:
        if give_up.is_set():
            raise PyvlmError("told to stop while loading", code="draining")
        console(stage, done, total, seconds)

    try:
        return AsyncEngine.load(
            model, build=build_options(args), options=options, policy=policy, progress=progress
        )
    finally:
        console.close()


def _model(args: argparse.Namespace) -> str:
    given = [name for name in (args.model, args.model_flag) if name is not None]
    if len(set(given)) > 1:
        raise PyvlmError(f"MODEL is {given[0]} and --model is {given[1]}", code="invalid_parameter")
    return str(given[0]) if given else TINY


def _config(args: argparse.Namespace, model: str) -> ServerConfig:
    names = tuple(args.served_model_name) or (Path(model).resolve().stem or "model",)
    return ServerConfig(
        model_names=names,
        api_keys=tuple(dict.fromkeys(_api_keys(args))),
        metrics_need_key=not args.metrics_without_key,
        allowed_origins=tuple(args.allowed_origins),
        has_page=not args.no_ui,
        max_body_bytes=args.max_body_bytes,
        max_ledger_bytes=args.max_ledger_bytes,
        request_timeout_s=args.request_timeout_s,
        body_timeout_s=args.body_timeout_s,
        body_total_timeout_s=args.body_total_timeout_s,
        header_timeout_s=args.header_timeout_s,
        write_timeout_s=args.write_timeout_s,
        shutdown_timeout_s=args.shutdown_timeout_s,
        max_connections=args.max_connections,
    )


def _api_keys(args: argparse.Namespace) -> list[str]:
    keys = list(args.api_key)
    if key := os.environ.get(_KEY_VARIABLE):
        keys.append(key)
    if args.api_key_file is not None:
        try:
            of_file = key_lines(args.api_key_file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            raise _unusable(args.api_key_file, "cannot be read") from None
        if not of_file:
            raise _unusable(args.api_key_file, "holds no key")
        keys += of_file
    return keys


def _unusable(path: Path, problem: str) -> PyvlmError:
    return PyvlmError(
        f"--api-key-file: {path} {problem}", code="invalid_parameter", param="api_key_file"
    )


def _engine_options(args: argparse.Namespace) -> EngineOptions:
    workers = args.preprocess_workers
    return EngineOptions(
        num_threads=args.threads,
        step_budget_ms=args.step_budget_ms,
        max_queued=args.max_num_queued_reqs,
        max_queued_bytes=args.max_ledger_bytes,
        num_preprocess_workers=default_num_workers() if workers is None else workers,
        slab_bytes=args.slab_bytes,
        preprocess_timeout_s=args.preprocess_timeout_s,
        preprocess_worker_bytes=args.preprocess_worker_bytes,
        image_cache_bytes=args.image_cache_bytes,
    )
