"""llama.cpp by its own tools."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.rows import BATCHES, DECODED, POSITION, PREFILLS
from bench.systems.base import ChildError, Context, peak_pss_mib, run_child
from bench.systems.pictures import write_pictures

CACHE_TEXT, CACHE_IMAGE = 8192, 4096
PICTURES = 3
REPEATS = 3
_ENCODED = re.compile(r"batch encoding done in (\d+) ms")
_CONVERT = Path(__file__).resolve().parent / "convert_gguf.py"


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The language model in `dtype`. The tower is F16, its fastest: it is not quantised here."""

    context: Context
    dtype: Literal["F16", "Q8_0", "Q4_0"]

    @property
    def name(self) -> str:
        return f"llama.cpp {self.dtype}"

    @property
    def sections(self) -> frozenset[str]:
        image = {"image"} if self.dtype == "F16" else set()
        return frozenset({"decode", "prefill", "memory", "serve"} | image)

    def model(self, *, untiled: bool = False) -> Path:
        return self._file(self.dtype, untiled=untiled)

    def tower(self, *, untiled: bool = False) -> Path:
        return self._file("mmproj-F16", untiled=untiled)

    def prepare(self) -> None:
        for untiled in (False, True):
            self._convert(self._file("F16", untiled=untiled), untiled=untiled)
            self._convert(self.tower(untiled=untiled), "--mmproj", untiled=untiled)
            if not self.model(untiled=untiled).exists():
                source, target = self._file("F16", untiled=untiled), self.model(untiled=untiled)
                self._run("quantize", [source, target, self.dtype])

    def server_command(self, port: int, *, untiled: bool) -> list[str]:
        arguments = [
            "-m", self.model(untiled=untiled), "--mmproj", self.tower(untiled=untiled),
            "-np", 8, "-c", 8 * 2048, "-t", self.context.threads, "--port", port, "--jinja",
            "--no-webui",
        ]  # fmt: skip
        return [str(self.binary("server")), *map(str, arguments)]

    def measure(self, section: str) -> dict[str, float]:
        measures = {
            "decode": self._decode,
            "prefill": self._prefill,
            "image": self._image,
            "memory": self._memory,
        }
        return measures[section]()

    def binary(self, tool: str) -> Path:
        if self.context.llama_cpp is None:
            raise ChildError("--llama-cpp names no folder of build_llama_cpp.sh")
        return self.context.llama_cpp / "bin" / f"llama-{tool}"

    def _decode(self) -> dict[str, float]:
        batches = ",".join(map(str, BATCHES))
        arguments = [*self._batched(batches), "--output-format", "jsonl"]
        values = {}
        for line in self._run("batched-bench", arguments).splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                values[f"decode_b{result['pl']}"] = float(result["speed_tg"])
        return values

    def _prefill(self) -> dict[str, float]:
        lengths = ",".join(map(str, PREFILLS))
        arguments = ["-p", lengths, "-n", "0", "-r", REPEATS, "-o", "jsonl", *self._common()]
        values = {}
        for line in self._run("bench", arguments).splitlines():
            if line.startswith("{"):
                result = json.loads(line)
                speed = statistics.median(result["samples_ts"])
                values[f"prefill_{result['n_prompt']}"] = float(speed)
        return values

    def _image(self) -> dict[str, float]:
        text = self._run("mtmd-cli", self._describe(PICTURES))
        times = [int(found) for found in _ENCODED.findall(text)]
        if len(times) < 2:
            raise ChildError("llama-mtmd-cli names no time of encoding")
        return {"image_tile": float(statistics.median(times[1:]))}  # the first one warms up

    def _memory(self) -> dict[str, float]:
        threads = self.context.threads
        text = [self.binary("batched-bench"), *self._batched("1")]
        image = [self.binary("mtmd-cli"), *self._describe(1)]
        return {
            "memory_text": peak_pss_mib([str(part) for part in text], threads=threads),
            "memory_image": peak_pss_mib([str(part) for part in image], threads=threads),
        }

    def _batched(self, batches: str) -> list[object]:
        return ["-c", CACHE_TEXT, "-npp", POSITION, "-ntg", DECODED, "-npl", batches,
                *self._common()]  # fmt: skip

    def _describe(self, count: int) -> list[object]:
        pictures = write_pictures(self.context.folder, count, 512)
        images = ["--image", ",".join(map(str, pictures))]
        return ["--mmproj", self.tower(untiled=True), "-c", CACHE_IMAGE, "-n", 1, "-p", "what",
                "--jinja", *images, *self._common(untiled=True)]  # fmt: skip

    def _common(self, *, untiled: bool = False) -> list[object]:
        return ["-m", self.model(untiled=untiled), "-t", self.context.threads]

    def _convert(self, target: Path, *more: str, untiled: bool) -> None:
        if target.exists() or self.context.llama_cpp is None:
            return
        source = self.context.untiled if untiled else self.context.checkpoint
        command: list[str | Path] = [self.context.torch_python, _CONVERT]
        command += [self.context.llama_cpp / "source", source, "--outtype", "f16"]
        command += ["--outfile", target, *more]
        run_child(command, threads=self.context.threads)

    def _file(self, what: str, *, untiled: bool) -> Path:
        checkpoint = self.context.untiled if untiled else self.context.checkpoint
        return self.context.folder / f"{checkpoint.name}-{what}.gguf"

    def _run(self, tool: str, arguments: list[object]) -> str:
        command: list[str | Path] = [self.binary(tool), *map(str, arguments)]
        return run_child(command, threads=self.context.threads)
