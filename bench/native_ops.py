"""Builds bench/native/host_ops.cc with the engine's sources and opens it: no Python API has these
operations alone."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (
    "bench/native/host_ops.cc",
    "csrc/engine/prepared_prefill.cc",
    "csrc/engine/prompt_work.cc",
    "csrc/engine/sampler.cc",
    "csrc/engine/sampling_params.cc",
    "csrc/engine/scheduler.cc",
    "csrc/engine/slot_table.cc",
    "csrc/testing/prefills.cc",
    "csrc/testing/fake_runner.cc",
    "csrc/base/error.cc",
)
_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden")


def build_native_ops(folder: Path) -> NativeOps:
    """Compiled anew each session, with the flags of a release build; `CXX` names the compiler."""
    path = folder / "libhost_ops.so"
    command = [os.environ.get("CXX", "c++"), *_FLAGS, f"-I{ROOT}"]
    command += [str(ROOT / source) for source in _SOURCES]
    subprocess.run([*command, "-o", str(path)], check=True, timeout=600)
    return NativeOps(ctypes.CDLL(str(path)))


class NativeOps:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        f, i, size, pointer = ctypes.c_float, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        library.sampler_new.argtypes = [pointer, size, f, i, f, f, f, pointer, size]
        library.sampler_new.restype = pointer
        library.sampler_sample.argtypes = [pointer, i]
        library.sampler_advance.argtypes = [pointer]
        library.sampler_free.argtypes = [pointer]
        library.slots_cycle.argtypes = [i, i]
        library.scheduler_new.argtypes = [i, i]
        library.scheduler_new.restype = pointer
        library.scheduler_steps.argtypes = [pointer, i]
        library.scheduler_steps.restype = size
        library.scheduler_num_waiting.argtypes = [pointer]
        library.scheduler_num_waiting.restype = size
        library.scheduler_free.argtypes = [pointer]


class Sampler:
    """One row's sampler over fixed logits."""

    def __init__(
        self,
        ops: NativeOps,
        logits: npt.NDArray[np.float32],
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        history: Sequence[int] = (),
    ) -> None:
        self._library = ops.library
        ids = np.asarray(history, np.int32)
        self._handle = ops.library.sampler_new(
            logits.ctypes.data, logits.size, temperature, top_k, top_p, min_p,
            repetition_penalty, ids.ctypes.data, ids.size,
        )  # fmt: skip

    def repeat(self, count: int) -> int:
        """The same draw, `count` times."""
        return int(self._library.sampler_sample(self._handle, count))

    def advance(self) -> int:
        return int(self._library.sampler_advance(self._handle))

    def close(self) -> None:
        self._library.sampler_free(self._handle)


class Scheduler:
    """`num_slots` sequences decode, `num_waiting` more wait for a slot."""

    def __init__(self, ops: NativeOps, num_slots: int, num_waiting: int) -> None:
        self._library = ops.library
        self._handle = ops.library.scheduler_new(num_slots, num_waiting)

    def steps(self, count: int) -> int:
        return int(self._library.scheduler_steps(self._handle, count))

    @property
    def num_waiting(self) -> int:
        return int(self._library.scheduler_num_waiting(self._handle))

    def close(self) -> None:
        self._library.scheduler_free(self._handle)
