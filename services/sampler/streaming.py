"""One sequence told while it is generated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import perf_counter

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import ServerError
from services.sampler import metrics
from services.sampler.ports import SequenceDelta
from services.sampler.results import check_delta, is_cut_off, topk_table
from services.sampler.text import Decoder, TokenText


class SequenceTeller:
    """`finish`, `tokens` and `cached_tokens` are the sequence's when `run` has returned."""

    def __init__(
        self, request: pb.SampleStreamRequest, index: int, decoder: Decoder, tell: Callable[[pb.SampleChunk], None]
    ) -> None:
        self._index = index
        self._leg = request.sample.leg
        self._with_text = request.with_text
        self._text = _text_of(request, decoder)
        self._tell = tell
        self._last = perf_counter()
        self.finish = ""
        self.tokens = 0
        self.cached_tokens = 0

    async def run(self, deltas: AsyncGenerator[SequenceDelta, None]) -> None:
        """Until the engine has ended: a leg waits for its blocks behind its finish, and fails when they do not come.

        What the engine would generate behind a stop string found here is stopped. Raises Unavailable for an output
        that was cut off, unless the engine raises the cause behind it: it never counts as a finish.
        """
        cut_off: SequenceDelta | None = None
        async with aclosing(deltas):
            async for delta in deltas:
                if is_cut_off(delta):
                    cut_off = delta
                    continue
                self._take(delta)
                if self.finish and not delta.finish:
                    return
        if cut_off is not None:
            check_delta(cut_off)
        if not self.finish:
            raise ServerError(
                f"stage generating: the engine ended sequence {self._index} after {self.tokens} tokens without a finish"
            )

    def _take(self, delta: SequenceDelta) -> None:
        check_delta(delta)
        text, count = self._read(delta)
        if not (count or delta.finish):
            return
        self._measure()
        first, self.tokens = not self.tokens, self.tokens + count
        if not self.tokens:
            raise ServerError(f"stage generating: the engine ended sequence {self._index} without a token")
        chunk = self._chunk(delta, count)
        chunk.text, chunk.finish = text if self._with_text else "", self.finish
        if first:
            chunk.cached_tokens = self.cached_tokens = delta.cached_tokens
        self._tell(chunk)

    def _read(self, delta: SequenceDelta) -> tuple[str, int]:
        """(text, tokens that belong to the sequence); sets `finish`."""
        self.finish = delta.finish
        if self._text is None:
            return "", len(delta.tokens)
        told = ""
        for count, token in enumerate(delta.tokens.tolist(), start=1):
            told += self._text.push(token)
            if self._text.stopped:
                self.finish = "stop"
                return told, count
        goes_on = self._leg == pb.LEG_PREFILL and self.finish == "length"
        return told + (self._text.flush() if self.finish and not goes_on else ""), len(delta.tokens)

    def _chunk(self, delta: SequenceDelta, count: int) -> pb.SampleChunk:
        return pb.SampleChunk(
            sequence=self._index,
            tokens=delta.tokens[:count].astype("<i4").tobytes(),
            logprobs=delta.logprobs[:count].astype("<f4").tobytes(),
            topk=None if delta.topk is None else topk_table(delta.topk, count),
        )

    def _measure(self) -> None:
        now = perf_counter()
        if self.tokens:
            metrics.token_gap(now - self._last)
        else:
            metrics.first_token(pb.Leg.Name(self._leg), now - self._last)
        self._last = now


def _text_of(request: pb.SampleStreamRequest, decoder: Decoder) -> TokenText | None:
    """None where nobody reads the text: stop strings are the engine's, but for those that begin before the seam."""
    stops = request.sample.body.stop.strings
    if not (request.with_text or (stops and request.seam_tokens)):
        return None
    prompt = np.frombuffer(request.sample.body.prompt_tokens, "<i4")
    return TokenText(decoder, list(stops), prompt[len(prompt) - request.seam_tokens :].tolist())
