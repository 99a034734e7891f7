"""From a sequence's outputs to deltas: text, ids, logprobs, and in the end usage and timings."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pyvlm import _core
from pyvlm.detokenizer import token_bytes
from pyvlm.errors import PyvlmError
from pyvlm.generation import TextStream
from pyvlm.outputs import Delta, FinishReason, Timings, TokenLogprob, TopLogprob, Usage
from pyvlm.sampling import SamplingParams
from pyvlm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptCounts:
    num_tokens: int  # logical
    num_image_positions: int


class DeltaStream:
    """One generation's. Push every output in order, until a delta has a finish_reason."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, counts: PromptCounts, arrival: float
    ) -> None:
        """`arrival`: when the request came, on the monotonic clock."""
        self._tokenizer = tokenizer
        self._wants_logprobs = sampling.num_logprobs is not None
        self._stream = TextStream(tokenizer, sampling.stop)
        self._counts = counts
        self._arrival = arrival
        self._ttft = 0.0
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def push(self, output: _core.TokenOutput, before: Timings) -> Delta | None:
        """None: nothing became certain. `before`: the stages that the engine does not know.

        Raises what ended the sequence, if it was no proper end.
        """
        text = self._take(output)
        reason = self._reason(output)
        if reason is None:
            return self._delta(text) if text else None
        if not self._stream.stopped:
            text += self._stream.finish()
            reason = "stop" if self._stream.stopped else reason
        return replace(
            self._delta(text),
            finish_reason=reason,
            usage=self._usage(),
            timings=self._timings(output, before),
        )

    def nothing(self, before: Timings) -> Delta:
        """The one delta of a request for no tokens, which no engine sees."""
        timings = replace(before, total=time.monotonic() - self._arrival)
        return replace(
            self._delta(""), finish_reason="length", usage=self._usage(), timings=timings
        )

    def _take(self, output: _core.TokenOutput) -> str:
        if output.token_ids and not self._ttft:
            self._ttft = time.monotonic() - self._arrival
        before = self._stream.num_tokens
        text = self._stream.push(output.token_ids)
        used = self._stream.num_tokens - before  # fewer if a stop string was completed
        self._token_ids += output.token_ids[:used]
        if self._wants_logprobs:
            self._logprobs += [_logprob(self._tokenizer, p) for p in output.logprobs[:used]]
        return text

    def _reason(self, output: _core.TokenOutput) -> FinishReason | None:
        if self._stream.stopped:
            return "stop"
        if output.finish_reason == "error":
            raise PyvlmError(
                output.error_message or "the generation failed",
                code=output.error_code or "engine_failed",
            )
        if output.finish_reason == "cancelled":  # by a shutdown: a consumer that cancels is gone
            raise PyvlmError("the engine was shut down", code="draining")
        return output.finish_reason

    def _delta(self, text: str) -> Delta:
        logprobs = tuple(self._logprobs) if self._wants_logprobs else None
        delta = Delta(text, tuple(self._token_ids), logprobs)
        self._token_ids.clear()
        self._logprobs.clear()
        return delta

    def _usage(self) -> Usage:
        return Usage(
            self._counts.num_tokens, self._stream.num_tokens, self._counts.num_image_positions
        )

    def _timings(self, output: _core.TokenOutput, before: Timings) -> Timings:
        return replace(
            before,
            queue=before.queue + output.queue_us / 1e6,
            encode=output.encode_us / 1e6,
            prefill=output.prefill_us / 1e6,
            decode=output.decode_us / 1e6,
            ttft=self._ttft,
            total=time.monotonic() - self._arrival,
        )


def _logprob(tokenizer: Tokenizer, native: _core.TokenLogprob) -> TokenLogprob:
    data = token_bytes(tokenizer, native.token_id)
    top = tuple(_top(tokenizer, token_id, logprob) for token_id, logprob in native.top)
    return TokenLogprob(native.token_id, _text(data), data, native.logprob, top)


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    data = token_bytes(tokenizer, token_id)
    return TopLogprob(token_id, _text(data), data, logprob)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
