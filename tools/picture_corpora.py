"""Runs the picture corpora that packages ship through admission, decoding and transform.

    python -m tools.picture_corpora                 all, downloaded to ~/.cache/pyvlm-corpora
    python -m tools.picture_corpora --sample 200    every so many of them
    python -m tools.picture_corpora DIR ...         files of these directories instead
    python -m tools.picture_corpora --url http://127.0.0.1:8000     through a running server

Each file runs in a process of its own with a time limit, once with the tiny model's transform and
once with SmolVLM's. It has to end as a picture or as a typed error. Prints a table of outcomes with
the peak memory of each, and ends with 1 if anything else happened. Through a server each file is a
request, which has to end with 200 or 400 and a code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.picture_run import BEGIN, Outcome, parse_outcome

# (requirement, whether its source distribution is meant)
PACKAGES = (
    ("pillow==12.0.0", True),
    ("scikit-image==0.25.2", False),
    ("imageio==2.37.0", True),
)
SUFFIXES = {
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".mpo", ".webp", ".gif", ".bmp", ".dib", ".tif",
    ".tiff", ".ico", ".icns", ".psd", ".eps", ".ps", ".pdf", ".svg", ".fits", ".j2k", ".jp2",
    ".avif",
    ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".dds", ".sgi", ".rgb", ".bw", ".pcx", ".dcx", ".cur",
    ".fli", ".flc", ".spider", ".im", ".msp", ".xbm", ".xpm", ".wmf", ".emf", ".blp", ".qoi",
    ".gd",
    ".pcd", ".pxr", ".ras", ".mic", ".hdf5", ".grib", ".bufr", ".bin", ".oom",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    path: Path
    outcome: Outcome


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR")
    parser.add_argument("--sample", type=int, metavar="N", help="about N files, evenly chosen")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "pyvlm-corpora")
    parser.add_argument("--url", help="of a server that is to answer about each file")
    parser.add_argument("--verbose", action="store_true", help="one line for each file")
    args = parser.parse_args(argv)
    folders = args.folders or [unpack(name, sdist, args.cache) for name, sdist in PACKAGES]
    files = sorted({file for folder in folders for file in pictures(folder)})
    if args.sample:
        files = files[:: max(1, len(files) // args.sample)]
    results = []
    for result in run_served(args.url, files) if args.url else run(files):
        results.append(result)
        if args.verbose or result.outcome.is_fault:
            print(f"{result.outcome.name:24} {result.outcome.detail:60} {result.path}", flush=True)
    print(table(results))
    return int(not results or any(result.outcome.is_fault for result in results))


def pictures(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_symlink():
            yield path


def run(files: Sequence[Path]) -> Iterator[Result]:
    """One worker process takes file after file; a new one replaces it when it ends or hangs."""
    left = list(files)
    while left:
        names = "\n".join(str(path) for path in left)
        done = 0
        for outcome in _worker(names):
            yield Result(left[done], outcome)
            done += 1
        left = left[done:]


def run_served(url: str, files: Sequence[Path]) -> Iterator[Result]:
    from tools.picture_http import outcomes  # wants httpx

    for path, outcome in zip(files, outcomes(url, files), strict=True):
        yield Result(path, outcome)


def _worker(names: str) -> Iterator[Outcome]:
    """Outcomes in order; the last is a fault if the process did not get through all files."""
    command = [sys.executable, "-m", "tools.picture_run"]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment, cwd=Path(__file__).parents[1],
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(names)
        process.stdin.close()
        begun = False
        for line in process.stdout:
            begun = line == BEGIN
            if not begun:
                yield parse_outcome(line)
        code = process.wait()
    if code != 0 and begun:
        yield Outcome("HANG" if code == -14 else "CRASH", f"exit {code}", 0, is_fault=True)
    elif code != 0:
        raise RuntimeError(f"the worker ended with {code} outside a picture")


def table(results: Sequence[Result]) -> str:
    rows: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        rows[result.outcome.name, result.outcome.detail].append(result)
    lines = ["| outcome | | files | peak MiB | of |", "|---|---|---|---|---|"]
    for (name, detail), group in sorted(rows.items(), key=lambda row: (row[0][0], -len(row[1]))):
        worst = max(group, key=lambda result: result.outcome.peak_bytes)
        peak = worst.outcome.peak_bytes / (1 << 20)
        lines.append(f"| {name} | {detail} | {len(group)} | {peak:.0f} | {worst.path.name} |")
    return "\n".join([*lines, f"{len(results)} files"])


def unpack(requirement: str, sdist: bool, cache: Path) -> Path:
    """The unpacked package, downloaded by pip the first time."""
    target = cache / f"{requirement}{'-sdist' if sdist else ''}"
    if (target / "unpacked").is_dir():
        return target / "unpacked"
    target.mkdir(parents=True, exist_ok=True)
    name = requirement.partition("==")[0]  # what pip needs to look into it may be a wheel
    kind = ["--no-binary", name] if sdist else ["--only-binary", ":all:"]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "-q",
        "--no-deps",
    ]
    subprocess.run([*pip, *kind, "-d", str(target), requirement], check=True)
    (archive,) = (path for path in target.iterdir() if path.is_file())
    partial = target / "partial"
    if archive.suffix in (".whl", ".zip"):
        zipfile.ZipFile(archive).extractall(partial)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
    partial.rename(target / "unpacked")
    return target / "unpacked"


if __name__ == "__main__":
    sys.exit(main())
