"""`pyvlm compile`: a bundle ahead of time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyvlm.build import BuildOptions, compile_bundle
from pyvlm.cli.progress import ConsoleProgress
from pyvlm.recipe import DEFAULT_NUM_SEQS

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: _Subparsers) -> None:
    parser = subparsers.add_parser(
        "compile",
        help="compile a model into a bundle directory",
        description="Compiles MODEL (tiny, a checkpoint directory or a .gguf file) into a bundle "
        "that `--model` takes, here or on another machine.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_build_arguments(parser)
    parser.add_argument(
        "--target-cpu",
        metavar="CPU",
        help="LLVM's name of the CPU to compile for, such as x86-64-v3 (default: this machine's)",
    )
    parser.set_defaults(run=run)


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `BuildOptions` that every command with a model has."""
    parser.add_argument("--dtype", choices=("f16", "f32"), help="weights and KV cache (f16)")
    parser.add_argument(
        "--quantize",
        choices=("none", "int8"),
        help="weight matrices as int8 with a scale for each 32 inputs; the KV cache stays (none)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="cache positions of a sequence (default: room for the largest image, 256 tokens of "
        "text and 256 generated; text models 2048)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=int,
        metavar="N",
        help=f"sequences decoded at once ({DEFAULT_NUM_SEQS})",
    )
    parser.add_argument(
        "--lowering",
        choices=("kernels", "codegen"),
        help="native CPU kernels, or code that IREE generates (kernels)",
    )


def build_options(args: argparse.Namespace) -> BuildOptions:
    """From the arguments of `add_build_arguments`, and `--target-cpu` where there is one."""
    return BuildOptions(
        dtype=args.dtype,
        quantize=args.quantize,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        lowering=args.lowering,
        target_cpu=getattr(args, "target_cpu", None),
    )


def run(args: argparse.Namespace) -> int:
    progress = ConsoleProgress(sys.stderr)
    try:
        compile_bundle(args.model, args.output, build_options(args), progress)
    finally:
        progress.close()
    print(args.output)
    return 0
