"""What a caller sees of streams, the same for the real sampler and its double."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef, SampleBody, SampledSequence, StopCondition

from tests.contract.sampler.client import SamplerClient, body

PROMPT = [17, 300, 45, 6, 211, 480, 92, 130]


@dataclass(slots=True)
class Told:
    """One sequence of a stream, joined."""

    tokens: list[int]
    logprobs: bytes
    topk: tuple[bytes, bytes]
    text: str
    finish: str
    chunks: int


@dataclass(slots=True)
class Scenario:
    client: SamplerClient
    text_of: Callable[[list[int]], str]
    """The whole decoding, special tokens left out."""

    async def chunks(
        self, asked: SampleBody, *, request_id: str = "", adapter: AdapterRef | None = None, **fields: object
    ) -> list[pb.SampleChunk]:
        return [chunk async for chunk in self.call(asked, request_id, adapter, **fields)]

    def call(
        self, asked: SampleBody, request_id: str, adapter: AdapterRef | None = None, **fields: object
    ) -> grpc.aio.UnaryStreamCall:
        leg = fields.pop("leg", pb.LEG_WHOLE)
        name = request_id or f"stream.{self.client.new_number()}"
        sample = pb.SampleRequest(request_id=name, adapter=adapter, body=asked, leg=leg)  # type: ignore[arg-type]
        values = {"with_text": True, **fields}
        return self.client.stub.SampleStream(pb.SampleStreamRequest(sample=sample, **values), timeout=60)  # type: ignore[arg-type]

    async def told(self, asked: SampleBody, adapter: AdapterRef | None = None, **fields: object) -> list[Told]:
        return joined(await self.chunks(asked, adapter=adapter, **fields), asked.num_samples)

    async def idle(self) -> None:
        """Bounded wait until nothing is in the engine."""
        async with asyncio.timeout(20):
            while True:
                description = await self.client.stub.Describe(pb.DescribeSamplerRequest(), timeout=5)
                if not description.running + description.waiting:
                    return

    # ---- what must hold ---------------------------------------------------------------------

    async def stream_is_sample(self, asked: SampleBody, adapter: AdapterRef | None = None) -> list[Told]:
        """Ids and logprobs bitwise, alternatives, finishes; the joined text is that of the ids."""
        whole = (await self.client.result(asked, adapter)).sequences  # type: ignore[attr-defined]
        told = await self.told(asked, adapter)
        for mine, sequence in zip(told, whole, strict=True):
            assert _same(mine, sequence)
            if not asked.stop.strings:
                assert mine.text == self.text_of(mine.tokens)
        return told

    async def stop_strings_are_kept_out(self, prompt: list[int], length: int) -> None:
        """Of every length over token boundaries, where the free text has one first."""
        (free,) = await self.told(body(prompt, max_tokens=length, temperature=0.0))
        tried = 0
        for end in range(4, length + 1):
            stop = self.text_of(free.tokens[end - 3 : end])[1:]
            ends = [n for n in range(1, length + 1) if stop in self.text_of(free.tokens[:n])]
            if len(stop) < 2 or "\ufffd" in stop or not ends:
                continue
            asked = body(prompt, max_tokens=length, temperature=0.0, stop=StopCondition(strings=["never", stop]))
            (made,) = await self.stream_is_sample(asked)
            assert made.tokens == free.tokens[: ends[0]]
            assert made.finish == "stop"
            assert made.text == free.text[: free.text.index(stop)]
            tried += 1
        assert tried >= 5

    async def legs_are_one(self, prompt: list[int], length: int, stop: StopCondition | None = None) -> None:
        """Prefill's token is appended to decode's prompt; together they are what one sampler answers."""
        (whole,) = await self.told(body(prompt, max_tokens=length, temperature=0.0, stop=stop))
        (first,) = await self.told(body(prompt, max_tokens=1, temperature=0.0, stop=stop), leg=pb.LEG_PREFILL)
        if len(whole.tokens) == 1:
            assert (first.tokens, first.text) == (whole.tokens, whole.text)
            return
        rest = body([*prompt, *first.tokens], max_tokens=length - 1, temperature=0.0, stop=stop)
        (second,) = await self.told(rest, leg=pb.LEG_DECODE, seam_tokens=1)
        assert first.tokens + second.tokens == whole.tokens
        assert first.text + second.text == whole.text
        assert second.finish == whole.finish

    async def repeat_attaches(self, asked: SampleBody) -> None:
        """`asked` without a seed: equal only when it ran once."""
        first = self.call(asked, "twice")
        early = [await first.read()]
        second = self.chunks(asked, request_id="twice")
        whole, again = await asyncio.gather(_rest(first, early), second)
        assert whole == again

    async def abort_ends_it(self, asked: SampleBody) -> None:
        call = self.call(asked, "aborted")
        await call.read()
        assert (await self.client.stub.Abort(pb.AbortRequest(request_id="aborted"), timeout=5)).was_running
        with pytest.raises(grpc.aio.AioRpcError, match="aborted was aborted"):
            await _rest(call, [])
        await self.idle()


def joined(chunks: list[pb.SampleChunk], count: int) -> list[Told]:
    return [_joined([chunk for chunk in chunks if chunk.sequence == n]) for n in range(count)]


def _joined(chunks: list[pb.SampleChunk]) -> Told:
    assert [bool(chunk.finish) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for chunk in chunks:
        assert len(chunk.tokens) == len(chunk.logprobs) and (chunk.tokens or chunk.finish)
    return Told(
        tokens=np.frombuffer(b"".join(chunk.tokens for chunk in chunks), "<i4").tolist(),
        logprobs=b"".join(chunk.logprobs for chunk in chunks),
        topk=(b"".join(c.topk.token_ids for c in chunks), b"".join(c.topk.logprobs for c in chunks)),
        text="".join(chunk.text for chunk in chunks),
        finish=chunks[-1].finish,
        chunks=len(chunks),
    )


def _same(mine: Told, sequence: SampledSequence) -> bool:
    return (
        mine.tokens == np.frombuffer(sequence.tokens, "<i4").tolist()
        and mine.logprobs == sequence.logprobs
        and mine.topk == (sequence.topk.token_ids, sequence.topk.logprobs)
        and (mine.finish == "stop") == sequence.stopped
    )


async def _rest(call: grpc.aio.UnaryStreamCall, early: list[pb.SampleChunk]) -> list[pb.SampleChunk]:
    while (chunk := await call.read()) is not grpc.aio.EOF:
        early.append(chunk)
    return early
