"""`pyvlm generate`: one prompt, streamed."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvlm.capabilities import modality_unsupported
from pyvlm.chat import Message, user_message
from pyvlm.cli.compile import add_build_arguments, build_options
from pyvlm.cli.progress import ConsoleProgress
from pyvlm.errors import PyvlmError
from pyvlm.media.policy import DEFAULT_FORMATS, MediaPolicy
from pyvlm.sampling import SamplingParams

if TYPE_CHECKING:
    from pyvlm.session import Generation, GenerationRequest

    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

MAX_THREADS = 256


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
    images = _read_images(args.image, policy)
    prompt = _prompt(args)
    from pyvlm.session import GenerationRequest, load_session

    progress = ConsoleProgress(sys.stderr)
    try:
        session = load_session(
            args.model,
            build_options(args),
            num_threads=args.threads,
            policy=policy,
            progress=progress,
        )
    finally:
        progress.close()
    with session:
        request: GenerationRequest = GenerationRequest(prompt, images, sampling)
        _answer(session.generate(request), as_json=args.json)
    return 0


def _answer(generation: Generation, *, as_json: bool) -> None:
    parts = []
    for text in generation:
        parts.append(text)
        if not as_json:
            sys.stdout.write(text)
            sys.stdout.flush()
    if as_json:
        print(json.dumps(_report("".join(parts), generation), ensure_ascii=False))
    else:
        sys.stdout.write("\n")


def _report(text: str, generation: Generation) -> dict[str, Any]:
    usage, timings = generation.usage, generation.timings
    rate = timings.decode_tokens_per_s
    return {
        "text": text,
        "finish_reason": generation.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"image_positions": usage.image_positions},
        },
        "timings": {
            "load_s": round(timings.load, 6),
            "preprocess_s": round(timings.preprocess, 6),
            "encode_s": round(timings.encode, 6),
            "prefill_s": round(timings.prefill, 6),
            "decode_s": round(timings.decode, 6),
            "decode_tokens_per_s": None if rate is None else round(rate, 2),
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


def _read_images(paths: list[str], policy: MediaPolicy) -> list[bytes]:
    """Count and size are refused before anything is read; only regular files are opened."""
    sizes = [_file_size(path, index) for index, path in enumerate(paths)]
    policy.check_request(sizes)
    images = []
    for index, path in enumerate(paths):
        try:
            images.append(Path(path).read_bytes())
        except OSError as error:
            raise _unreadable(index, path, error.strerror or "it cannot be read") from None
    return images


def _file_size(path: str, index: int) -> int:
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no file name"
        raise _unreadable(index, path, reason) from None
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(index, path, "it is no regular file")
    return status.st_size


def _unreadable(index: int, path: str, reason: str) -> PyvlmError:
    return PyvlmError(
        f"image {index}: {path}: {reason}", code="image_fetch_failed", param=f"images[{index}]"
    )
