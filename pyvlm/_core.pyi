"""The seam between Python and the native engine.

Letters in shapes: T tokens of the logical prompt, N tiles of an image, P patches of a tile,
K = 3 * patch_size ** 2, R rows of an image, H the decoder's width. Whatever goes wrong raises
`pyvlm.errors.PyvlmError` with a code of `error_codes()`. Blocking calls release the GIL. Objects
may be used from any thread.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

_Ids: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
_Array: TypeAlias = npt.NDArray[Any]

class _LibraryInfo(TypedDict):
    path: str
    version: str
    drivers: list[str]
    kernels: Literal["scalar", "avx2"]
    cores: int

def error_codes() -> list[str]: ...
def library_info() -> _LibraryInfo: ...

class Device:
    """A HAL device and its worker threads; loads the runtime library at first use."""

    def __init__(
        self, driver: str = "local-task", num_threads: int = 0, *, worker_spin_us: int = ...
    ) -> None:
        """num_threads 0: one per physical core available."""

    @property
    def driver(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int:
        """The largest used_bytes so far."""

class EntryPoint:
    """A compiled prefill (size: positions of a chunk) or decode function (size: rows)."""

    def __init__(self, function: str, size: int, context: int) -> None: ...
    @property
    def function(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def context(self) -> int: ...

class VisionSpec:
    def __init__(
        self,
        *,
        num_patches: int,
        grid: int,
        patch_dim: int,
        hidden_size: int,
        rows_per_tile: int,
        num_block_groups: int,
    ) -> None: ...
    @property
    def num_patches(self) -> int: ...
    @property
    def grid(self) -> int: ...
    @property
    def patch_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def rows_per_tile(self) -> int: ...
    @property
    def num_block_groups(self) -> int: ...

class ModelSpec:
    """The static shape of a bundle; what its functions must look like follows from it."""

    def __init__(
        self,
        *,
        hidden_size: int,
        vocab_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_slots: int,
        capacity: int,
        prefill: Sequence[EntryPoint],
        decode: Sequence[EntryPoint],
        kv_dtype: Literal["f16", "f32"] = "f16",
        all_logits: bool = False,
        vision: VisionSpec | None = None,
    ) -> None: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def prefill(self) -> list[EntryPoint]: ...
    @property
    def decode(self) -> list[EntryPoint]: ...
    @property
    def kv_dtype(self) -> Literal["f16", "f32"]: ...
    @property
    def all_logits(self) -> bool: ...
    @property
    def vision(self) -> VisionSpec | None: ...

class Program:
    """A compiled module with its weights on a device. The files are mapped while it lives."""

    def __init__(
        self,
        device: Device,
        vmfb_path: str,
        archive_path: str = "",
        spec: ModelSpec | None = None,
    ) -> None:
        """With a spec, the functions that it implies are looked up and checked."""

    @property
    def device(self) -> Device: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def functions(self) -> list[str]: ...
    def invoke(
        self, function: str, args: Sequence[_Array | int], *, copy: bool = True
    ) -> list[Any]:
        """Runs one function; for tests and tools.

        copy False: the arrays, which must be writable, are the arguments' own memory, and an
        argument that the function consumes is overwritten. Results are arrays over device memory,
        or integers.
        """

class SamplingParams:
    """How a token is drawn; the defaults are greedy and neutral. Order: csrc/engine/sampler.h."""

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = [],
        seed: int | None = None,
        num_logprobs: int | None = None,
    ) -> None:
        """num_logprobs, 0 to 20: likeliest tokens to report with each one; None: no report."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> list[tuple[int, float]]: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def num_logprobs(self) -> int | None: ...

class Segment:
    """A part of the prompt: a run of text ids, or one image."""

    @staticmethod
    def text(start: int, count: int) -> Segment: ...
    @staticmethod
    def image(index: int, expanded_ids: _Ids) -> Segment:
        """expanded_ids: the positions of the image; image_token_id where an encoder row goes."""

class ImageInput:
    """One image as a view of C-contiguous memory, which is neither copied nor resized meanwhile."""

    @staticmethod
    def pixels(
        patches: npt.NDArray[np.float32] | Buffer,
        valid: npt.NDArray[np.int32] | Buffer,
        *,
        cache_key: bytes = b"",
    ) -> ImageInput:
        """patches [N, P, K] float32, valid [N, 2] int32: rows and columns of real patches.

        valid is copied. cache_key, at most 256 bytes: Engine.cached_image finds the rows of this
        image by it. It must name everything that they depend on, the picture and all settings of
        its preparation: the engine does not compare pixels. Empty: they are not kept.
        """

    @staticmethod
    def embeddings(
        rows: npt.NDArray[np.float32] | npt.NDArray[np.float16] | Buffer,
    ) -> ImageInput:
        """rows [R, H], float32 or float16: ready decoder rows.

        float32 rows are read in place if the program can: native kernels take any address,
        generated code a multiple of 64 bytes.
        """

class PreparedPrefill:
    """A validated, immutable prompt. May be submitted several times, to several engines.

    Keeps the buffers of its images; an engine keeps them itself from submit until it has read
    them, so this object may be dropped then.
    """

    def __init__(
        self,
        *,
        logical_ids: _Ids,
        segments: Sequence[Segment],
        images: Sequence[ImageInput],
        sampling: SamplingParams,
        max_new_tokens: int | None,
        stop_token_ids: _Ids,
        deadline_s: float | None = None,
        image_token_id: int = -1,
    ) -> None:
        """logical_ids [T] with one image_token_id per image; segments cover them in order.

        max_new_tokens None: what is left of the capacity. stop_token_ids end the generation and
        are never emitted. deadline_s counts from submit.
        """

    @property
    def logical_ids(self) -> list[int]: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_positions(self) -> int: ...
    @property
    def num_images(self) -> int: ...
    @property
    def max_new_tokens(self) -> int | None: ...

class Runner:
    """Executes model calls for an engine."""

    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

class IreeRunner(Runner):
    """Allocates the cache of `program` and measures what its calls cost."""

    def __init__(self, program: Program) -> None: ...

class EngineOptions:
    def __init__(
        self,
        *,
        step_budget_ms: float = 100.0,
        max_queued: int = 256,
        check_invariants: bool = False,
        image_cache_bytes: int = 0,
    ) -> None:
        """step_budget_ms: longest prompt work between two decode steps.

        max_queued: unfinished sequences beyond the number of slots. check_invariants: after every
        step, for tests. image_cache_bytes: device memory for the rows of images with a cache_key,
        the least recently used leave first; 0: off.
        """

    @property
    def step_budget_ms(self) -> float: ...
    @property
    def max_queued(self) -> int: ...
    @property
    def check_invariants(self) -> bool: ...
    @property
    def image_cache_bytes(self) -> int: ...

class TokenLogprob:
    """Log-softmax of the raw logits (before bias, penalties, temperature); may be -inf."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]:
        """The num_logprobs likeliest ids, descending; among equals the smaller id first."""

class TokenOutput:
    """What a sequence produced since it was last pulled; its last output has a finish_reason."""

    @property
    def seq_id(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One per token id; empty unless num_logprobs was given."""

    @property
    def finish_reason(self) -> Literal["stop", "length", "cancelled", "error"] | None: ...
    @property
    def error_code(self) -> str | None: ...
    @property
    def error_message(self) -> str | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_positions(self) -> int: ...
    @property
    def num_generated(self) -> int: ...
    @property
    def queue_us(self) -> int: ...
    @property
    def encode_us(self) -> int: ...
    @property
    def prefill_us(self) -> int: ...
    @property
    def decode_us(self) -> int: ...

class TimeHistogram:
    """Durations in microseconds, since the start."""

    @property
    def bounds(self) -> list[int]:
        """Inclusive upper bounds of all buckets but the last."""

    @property
    def counts(self) -> list[int]:
        """Per bucket, not cumulative: one more than bounds."""

    @property
    def sum(self) -> int: ...

class EngineStats:
    """A snapshot: gauges first, then counters since the start. Meanings: csrc/engine/stats.h."""

    @property
    def is_alive(self) -> bool: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def num_cached(self) -> int: ...
    @property
    def num_leases(self) -> int: ...
    @property
    def num_submitted(self) -> int: ...
    @property
    def num_stopped(self) -> int: ...
    @property
    def num_length(self) -> int: ...
    @property
    def num_cancelled(self) -> int: ...
    @property
    def num_failed(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_prefill_positions(self) -> int: ...
    @property
    def num_generated_tokens(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_encode_units(self) -> int: ...
    @property
    def num_prefill_chunks(self) -> int: ...
    @property
    def num_decode_retries(self) -> int: ...
    @property
    def decode_width(self) -> list[int]: ...
    @property
    def encode_us(self) -> int: ...
    @property
    def prefill_us(self) -> int: ...
    @property
    def decode_us(self) -> int: ...
    @property
    def max_step_us(self) -> int: ...
    @property
    def step_us(self) -> TimeHistogram:
        """Of the num_steps steps: planning, running, applying."""

    @property
    def num_cached_images(self) -> int: ...
    @property
    def image_cache_bytes(self) -> int: ...
    @property
    def num_image_cache_hits(self) -> int: ...
    @property
    def num_image_cache_misses(self) -> int: ...
    @property
    def num_image_cache_evictions(self) -> int: ...

class Engine:
    """Generates on a thread of its own. A context manager: leaving it shuts the engine down.

    In a child of fork it has no thread: calls raise engine_dead, stats say that it is not alive,
    cancel and shutdown do nothing, and its memory and that of its program stay until exit.
    """

    @overload
    def __init__(self, runner: Runner, options: EngineOptions = ...) -> None: ...
    @overload
    def __init__(self, program: Program, options: EngineOptions = ...) -> None: ...
    def submit(self, prepared: PreparedPrefill) -> int:
        """Queues a generation; ids count from 1.

        Raises queue_full, context_overflow and the other admission codes (then no id is used up
        and nothing is kept), draining after shutdown, engine_dead after a failure.
        """

    def cached_image(self, key: bytes) -> ImageInput | None:
        """The rows of an image that was encoded with this cache_key, if they are still kept.

        It costs no encoding, holds its rows whatever happens to the cache or the engine, and may be
        submitted any number of times, to engines on the same Program. Counts a hit or a miss.
        """

    def cancel(self, seq_id: int) -> None:
        """Takes effect within one step. Idempotent; unknown and finished ids are ignored."""

    def wait_outputs(self, timeout_s: float) -> list[TokenOutput]:
        """What has been produced, at once if there is something, else after at most timeout_s.

        timeout_s is 0 to 1000000.

        The calling thread lets go of the image buffers that the engine has finished with. Raises
        engine_dead or draining when the engine has stopped and everything has been pulled.
        """

    def stats(self) -> EngineStats: ...
    def shutdown(self) -> None:
        """Ends all sequences as cancelled, joins the thread, lets go of all buffers. Idempotent.

        The last outputs can still be pulled.
        """

    @property
    def num_owners(self) -> int:
        """Image buffers kept for the engine."""

    @property
    def capacity(self) -> int: ...
    def __enter__(self) -> Engine: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
