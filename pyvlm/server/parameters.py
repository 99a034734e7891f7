"""Request fields to SamplingParams, one per choice; defaults are OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyvlm.errors import PyvlmError
from pyvlm.sampling import MAX_LOGPROBS, MAX_SEED, SamplingParams
from pyvlm.server.schema import ChatRequest, CompletionRequest, GenerationFields

DEFAULT_TEMPERATURE = 1.0
MAX_CHOICES = 16
MAX_BIASES = 1024
_MIN_SEED = -(2**63)


def chat_sampling(request: ChatRequest, vocab_size: int) -> SamplingParams:
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise _invalid("top_logprobs", "needs logprobs to be true")
    wanted = _logprobs("top_logprobs", top or 0) if request.logprobs else None
    params = _sampling(request, vocab_size, _max_tokens(request))
    return replace(params, num_logprobs=wanted)


def completion_sampling(request: CompletionRequest, vocab_size: int) -> SamplingParams:
    wanted = None if request.logprobs is None else _logprobs("logprobs", request.logprobs)
    params = _sampling(request, vocab_size, request.max_tokens)
    return replace(params, num_logprobs=wanted)


def num_choices(request: GenerationFields) -> int:
    n = 1 if request.n is None else request.n
    if not 1 <= n <= MAX_CHOICES:
        raise _invalid("n", f"must be an integer from 1 to {MAX_CHOICES}, not {str(n)[:24]}")
    return n


def for_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Choice `index` of a request with a seed is drawn with seed + index."""
    if params.seed is None or index == 0:
        return params
    return replace(params, seed=(params.seed + index) & MAX_SEED)


def check_stream_options(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise _invalid("stream_options", "needs stream to be true")


def _sampling(request: GenerationFields, vocab_size: int, max_tokens: int | None) -> SamplingParams:
    return SamplingParams(
        temperature=_or(request.temperature, DEFAULT_TEMPERATURE),
        top_p=_or(request.top_p, 1.0),
        top_k=0 if request.top_k is None else request.top_k,
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=_biases(request.logit_bias or {}, vocab_size),
        seed=_seed(request.seed),
        max_tokens=max_tokens,
        stop=_stops(request.stop),
    )


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise _invalid("max_tokens", "and max_completion_tokens mean the same and must not differ")
    return new if old is None else old


def _seed(seed: int | None) -> int | None:
    """Negative ones, which OpenAI's type allows, are taken modulo 2**64."""
    if seed is None:
        return None
    if not _MIN_SEED <= seed <= MAX_SEED:
        raise _invalid("seed", "must be a 64-bit integer")
    return seed & MAX_SEED


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _biases(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if len(given) > MAX_BIASES:
        raise _invalid("logit_bias", f"has {len(given)} entries, at most {MAX_BIASES} are taken")
    biases = {}
    for key, bias in given.items():
        is_id = key.isascii() and key.isdecimal() and len(key) < 12 and int(key) < vocab_size
        if not is_id:
            raise _invalid(
                "logit_bias", f"maps token ids from 0 to {vocab_size - 1}, not {key[:24]!r}"
            )
        biases[int(key)] = bias
    return biases


def _logprobs(name: str, count: int) -> int:
    if not 0 <= count <= MAX_LOGPROBS:
        raise _invalid(name, f"must be an integer from 0 to {MAX_LOGPROBS}, not {str(count)[:24]}")
    return count


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _invalid(name: str, problem: str) -> PyvlmError:
    return PyvlmError(f"{name} {problem}", code="invalid_parameter", param=name)
