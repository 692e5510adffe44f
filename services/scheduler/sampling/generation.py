"""The port through which everything that is sampled reaches the samplers: samples, completions, jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a placement is chosen by."""

    pool: str
    tenant_id: str
    adapter: types.AdapterRef | None
    sequences: int
    prompt: bytes
    """int32 little-endian: its prefix decides which sampler has it cached."""
    affinity: str = ""
    """Requests with one key (a sampling session, a conversation) go to one sampler while it has room."""
    batch: bool = False
    """Nobody waits for it: it stands in a line of its own, and yields to samples for a while."""
    at_once: bool = True
    """False: the caller shows nothing before the end, so chunks come then, and whatever breaks may begin anew."""


class Generation(Protocol):
    """A place on one sampler, or on a prefill and a decode sampler; the caller cannot tell which."""

    @property
    def sampler_ids(self) -> tuple[str, ...]: ...

    def stream(self, request: pb.SampleStreamRequest, seconds: float) -> AsyncGenerator[pb.SampleChunk, None]:
        """Chunks of every sequence, interleaved; ends after a `finish` for each.

        Closing it (`aclosing`) aborts the request at the samplers. Raises InvalidInput (the request),
        Unavailable (a sampler was lost, the text names the stage), Busy, ServerError (past `seconds`,
        an empty stream, a sequence cut off).
        """
        ...


class Generations(Protocol):
    def place(self, wanted: Wanted, seconds: float) -> AbstractAsyncContextManager[Generation]:
        """A place, its adapter loaded and acknowledged wherever the request may run; given back on leaving.

        Waits at most `seconds` for room. Raises Unavailable (no live sampler), Busy (no room in time),
        MissingResource or InvalidInput (the adapter), each naming the stage and the samplers.
        """
        ...

    async def tokenize(self, pool: str, request: pb.TokenizeRequest, seconds: float) -> bytes:
        """int32 little-endian ids by the tokenizer of the pool's samplers. Raises InvalidInput, Unavailable."""
        ...
