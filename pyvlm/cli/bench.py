"""`pyvlm bench serve`: load on an OpenAI-compatible server, ours or another."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvlm.bench.options import METRICS, ImageSize, Schedule, Target, Workload, invalid
from pyvlm.errors import PyvlmError

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

ENDPOINTS = {"openai-chat": "/v1/chat/completions", "openai": "/v1/completions"}


def add_parser(subparsers: _Subparsers) -> None:
    bench = subparsers.add_parser("bench", help="measure a running server")
    kinds = bench.add_subparsers(
        metavar="KIND", required=True, title="kinds", parser_class=type(bench)
    )
    parser = kinds.add_parser(
        "serve",
        help="send requests to a server and time the answers",
        description="Sends requests to any OpenAI-compatible server: at random times (open loop, "
        "--request-rate) or as a fixed number of clients (closed loop, --max-concurrency). "
        "Option names are those of vLLM's bench serve where it has the option.",
    )
    _add_target(parser.add_argument_group("server"))
    _add_workload(parser.add_argument_group("requests"))
    _add_output(parser.add_argument_group("results"))
    parser.set_defaults(run=run)


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", metavar="URL", help="instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--backend", choices=tuple(ENDPOINTS), default="openai-chat")
    group.add_argument("--endpoint", metavar="PATH", help="default: by --backend")
    group.add_argument("--model", default="", help="default: the first that the server lists")
    group.add_argument("--header", nargs="*", default=[], metavar="NAME=VALUE")
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="added to each request")
    group.add_argument("--request-timeout", type=float, default=600.0, metavar="S")
    group.add_argument(
        "--ready-check-timeout-sec", type=float, default=0.0, metavar="S",
        help="how long to wait for the server (0: it must be there)",
    )  # fmt: skip


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-prompts", type=int, default=100, metavar="N")
    group.add_argument("--num-warmups", type=int, default=1, metavar="N", help="not counted (1)")
    group.add_argument("--request-rate", type=float, default=float("inf"), metavar="PER_S")
    group.add_argument("--burstiness", type=float, default=1.0, help="1: Poisson arrivals (1)")
    group.add_argument("--max-concurrency", type=int, metavar="N", help="requests open at once")
    group.add_argument(
        "--random-input-len", type=int, default=128, metavar="N", help="words of a prompt (128)"
    )
    group.add_argument(
        "--random-output-len", type=int, default=64, metavar="N", help="max_tokens (64)"
    )
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="R")
    group.add_argument(
        "--image-fraction", type=float, default=0.0, metavar="F", help="requests with pictures (0)"
    )
    group.add_argument("--random-mm-base-items-per-request", type=int, default=1, metavar="N")
    group.add_argument(
        "--random-mm-bucket-config", default="{(512, 512, 1): 1.0}", metavar="DICT",
        help="{(height, width, 1): probability, ...}",
    )  # fmt: skip
    group.add_argument(
        "--num-distinct-images", type=int, default=0, metavar="N",
        help="pictures to choose from; 0: each is new (0)",
    )  # fmt: skip
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--ignore-eos", action="store_true", help="ask for exactly max_tokens")
    group.add_argument("--seed", type=int, default=0)


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="LIST")
    group.add_argument("--metric-percentiles", default="50,95,99", metavar="LIST")
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="METRIC:MS", help="limits, as ttft:500 tpot:50"
    )
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument("--save-detailed", action="store_true", help="with every request in it")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="DIR")
    group.add_argument("--result-filename", metavar="NAME")
    group.add_argument("--plot", type=Path, metavar="FILE", help="needs matplotlib")
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    metrics = _metrics(args.percentile_metrics)
    percentiles = _percentiles(args.metric_percentiles)
    goodput = dict(_objective(text) for text in args.goodput)
    target, workload = _target(args), _workload(args)
    schedule = Schedule(args.request_rate, args.burstiness, args.max_concurrency)
    if target.backend == "openai" and workload.image_fraction:
        raise invalid("--image-fraction needs --backend openai-chat")
    try:
        from pyvlm.bench import report, serve
        from pyvlm.bench.load import LoadRun
    except ModuleNotFoundError as error:
        raise PyvlmError(
            f"bench serve needs {error.name}: pip install aiohttp matplotlib",
            code="runtime_missing",
        ) from None
    if args.plot is not None:
        report.require_matplotlib()
    bench = serve.ServeBench(
        target, workload, schedule, args.num_warmups, percentiles, goodput,
        args.ready_check_timeout_sec,
    )  # fmt: skip
    load = LoadRun()
    bench, result = serve.run_bench(bench, load, progress=serve.progress_stream(args.disable_tqdm))
    if args.save_result or args.save_detailed:
        _save(args, bench.target.model, result, load)
    if args.plot is not None:
        report.write_plot(load.records, args.plot, f"{bench.target.model} at {target.url}")
    text = report.text_report(result, metrics, percentiles)
    print(json.dumps(result) if args.json else text)
    if result["interrupted"]:
        raise KeyboardInterrupt
    return 0 if result["completed"] else 5


def _save(args: argparse.Namespace, model: str, result: dict[str, Any], load: Any) -> None:
    if args.save_detailed:
        result = result | {"requests": [record.as_dict() for record in load.records]}
    name = args.result_filename
    if name is None:
        short = model.rsplit("/", 1)[-1]
        name = (
            f"{args.backend}-{args.request_rate:g}qps-{short}-{time.strftime('%Y%m%d-%H%M%S')}.json"
        )
    args.result_dir.mkdir(parents=True, exist_ok=True)
    path = args.result_dir / name
    path.write_text(json.dumps(result, indent=1) + "\n")
    sys.stderr.write(f"written: {path}\n")


def _target(args: argparse.Namespace) -> Target:
    headers = dict(_pair(text) for text in args.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers.setdefault("Authorization", f"Bearer {key}")
    try:
        extra = json.loads(args.extra_body)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise invalid("--extra-body must be a JSON object")
    return Target(
        base_url=args.base_url or f"http://{args.host}:{args.port}",
        endpoint=args.endpoint or ENDPOINTS[args.backend],
        model=args.model,
        backend=args.backend,
        headers=headers,
        extra_body=extra,
        timeout_s=args.request_timeout,
    )


def _workload(args: argparse.Namespace) -> Workload:
    return Workload(
        num_prompts=args.num_prompts,
        input_words=args.random_input_len,
        output_tokens=args.random_output_len,
        range_ratio=args.random_range_ratio,
        image_fraction=args.image_fraction,
        images_per_request=args.random_mm_base_items_per_request,
        image_sizes=_image_sizes(args.random_mm_bucket_config),
        num_distinct_images=args.num_distinct_images,
        temperature=args.temperature,
        ignore_eos=args.ignore_eos,
        seed=args.seed,
    )


def _image_sizes(text: str) -> tuple[ImageSize, ...]:
    try:
        buckets = ast.literal_eval(text)
        return tuple(ImageSize(int(h), int(w), float(p)) for (h, w, _), p in buckets.items())
    except (ValueError, SyntaxError, TypeError, AttributeError):
        raise invalid("--random-mm-bucket-config must look like {(512, 512, 1): 1.0}") from None


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise invalid(f"--header must be NAME=VALUE, not {text[:60]}")
    return name, value


def _objective(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if name not in ("ttft", "tpot", "e2el") or not limit > 0:
        raise invalid(f"--goodput takes ttft, tpot or e2el with a limit in ms, not {text[:60]}")
    return name, limit


def _metrics(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise invalid(f"--percentile-metrics takes {', '.join(METRICS)}, not {name[:60]}")
    return names


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError:
        values = (-1.0,)
    if not all(0 <= value <= 100 for value in values):
        raise invalid("--metric-percentiles takes numbers from 0 to 100")
    return values
