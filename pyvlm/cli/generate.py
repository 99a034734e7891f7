"""`pyvlm generate`: one prompt, streamed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyvlm.capabilities import modality_unsupported
from pyvlm.chat import Message, user_message
from pyvlm.cli.compile import add_build_arguments, build_options
from pyvlm.cli.progress import ConsoleProgress
from pyvlm.engine_options import MAX_THREADS, EngineOptions
from pyvlm.errors import PyvlmError
from pyvlm.media.policy import DEFAULT_FORMATS, MediaPolicy
from pyvlm.media.source_files import read_image_files
from pyvlm.sampling import SamplingParams

if TYPE_CHECKING:
    from pyvlm.llm import LLM
    from pyvlm.outputs import Delta

    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: _Subparsers) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="answer one prompt, with pictures",
        description="Answers one prompt through the checkpoint's own chat template.",
    )
    parser.add_argument(
        "--model", default="tiny", metavar="tiny|DIR|FILE.gguf", help="the model (tiny)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="the question; - reads standard input")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it")
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="a picture; repeat for more, their order is kept",
    )  # fmt: skip
    parser.add_argument(
        "--raw", action="store_true",
        help="no chat template: the prompt is taken as it is, <image> marks where pictures go",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="0: one per core (0)")
    parser.add_argument(
        "--allowed-image-formats", metavar="LIST", default=",".join(DEFAULT_FORMATS),
        help=f"comma-separated; TIFF may be added ({','.join(DEFAULT_FORMATS)})",
    )  # fmt: skip
    for name in ("audio", "video"):
        parser.add_argument(f"--{name}", action="append", metavar="FILE", help=argparse.SUPPRESS)
    _add_sampling(parser.add_argument_group("sampling"))
    add_build_arguments(parser)
    parser.set_defaults(run=run)


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="default: what is left of the capacity"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="F", help="0: greedy (0)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="F")
    group.add_argument("--top-k", type=int, default=0, metavar="N")
    group.add_argument("--min-p", type=float, default=0.0, metavar="F")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="F")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="F")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="F")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")


def run(args: argparse.Namespace) -> int:
    for name in ("audio", "video"):
        if getattr(args, name):
            raise modality_unsupported(name, ("text", "image"))
    policy = _policy(args)
    sampling = _sampling(args)
    images = read_image_files(args.image, policy)
    prompt = _prompt(args)
    from pyvlm.request import GenerationRequest

    with _load(args, policy) as llm:
        deltas = llm.stream(GenerationRequest(prompt, images, sampling))
        with closing(deltas):
            _answer(deltas, llm.engine.load_s, as_json=args.json)
    return 0


def _load(args: argparse.Namespace, policy: MediaPolicy) -> LLM:
    from pyvlm.llm import LLM

    options = EngineOptions(num_threads=args.threads, num_preprocess_workers=0)
    progress = ConsoleProgress(sys.stderr)
    try:
        return LLM(
            args.model,
            build=build_options(args),
            options=options,
            policy=policy,
            progress=progress,
        )
    finally:
        progress.close()


def _answer(deltas: Iterator[Delta], load_s: float, *, as_json: bool) -> None:
    parts = []
    for delta in deltas:
        parts.append(delta.text)
        if not as_json:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    if as_json:
        print(json.dumps(_report("".join(parts), delta, load_s), ensure_ascii=False))
    else:
        sys.stdout.write("\n")


def _report(text: str, last: Delta, load_s: float) -> dict[str, Any]:
    usage, timings = last.usage, last.timings
    assert usage is not None
    assert timings is not None
    num_decoded = usage.completion_tokens - 1  # tokens after the first
    has_rate = num_decoded > 0 and timings.decode > 0
    return {
        "text": text,
        "finish_reason": last.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"image_positions": usage.image_positions},
        },
        "timings": {
            "load_s": round(load_s, 6),
            "preprocess_s": round(timings.decode_image + timings.transform, 6),
            "encode_s": round(timings.encode, 6),
            "prefill_s": round(timings.prefill, 6),
            "decode_s": round(timings.decode, 6),
            "decode_tokens_per_s": round(num_decoded / timings.decode, 2) if has_rate else None,
        },
    }


def _policy(args: argparse.Namespace) -> MediaPolicy:
    names = [name.strip().upper() for name in args.allowed_image_formats.split(",")]
    return MediaPolicy(allowed_formats=tuple(name for name in names if name))


def _sampling(args: argparse.Namespace) -> SamplingParams:
    if not 0 <= args.threads <= MAX_THREADS:
        raise PyvlmError(
            f"--threads must be between 0 and {MAX_THREADS}, not {args.threads}",
            code="invalid_parameter",
        )
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
    )


def _prompt(args: argparse.Namespace) -> list[Message] | str:
    text = args.prompt
    if text == "-":
        text = _standard_input()
    if text is None and (args.raw or not args.image):
        raise PyvlmError("--prompt is required", code="empty_prompt", param="prompt")
    if args.raw:
        if args.system is not None:
            raise PyvlmError("--system does not go with --raw", code="invalid_parameter")
        return str(text)
    if not text and not args.image:
        raise PyvlmError("the prompt is empty", code="empty_prompt", param="prompt")
    system = [] if args.system is None else [Message("system", args.system)]
    return [*system, user_message(text or "", len(args.image))]


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise PyvlmError("standard input is not UTF-8", code="invalid_parameter") from None
