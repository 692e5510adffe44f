"""One generation from the scheduler's stream to the client: at once, or as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from tinkermesh.v1 import completions_pb2 as pb

from services.common.errors import InvalidInput, TinkermeshError
from services.gateway import metrics, sse
from services.gateway.http import json_response
from services.gateway.openai.answer import Answer
from services.gateway.openai.checks import Wish
from services.gateway.openai.errors import INTERNAL, error_object
from services.gateway.tasks import begun
from services.gateway.upstream.completions import Generation

log = logging.getLogger(__name__)

T = TypeVar("T")

ALIVE = b": alive\n\n"
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """Nobody is left to answer."""


class Serving:
    """`counted` hears of the first token and of the end."""

    def __init__(self, generation: Generation, answer: Answer, counted: metrics.Completing) -> None:
        self._generation = generation
        self._answer = answer
        self._counted = counted
        self._chunks = generation.chunks()
        self._next: asyncio.Task[pb.GeneratedChunk | None] | None = None

    async def whole(self) -> Response:
        """Raises the scheduler's error."""
        while (chunk := await self._read()) is not None:
            self._answer.add(chunk)
        self._counted.outcome = "ok"
        return json_response(self._answer.whole())

    async def began(self, seconds: float) -> None:
        """Until the first chunk is there, `seconds` at most: what fails by then has a status of its own.

        Raises the scheduler's error.
        """
        self._next = begun(self._read())
        await asyncio.wait({self._next}, timeout=seconds)
        if self._next.done() and (error := self._next.exception()) is not None:
            raise error

    async def events(self, heartbeat_seconds: float) -> AsyncIterator[bytes]:
        """Ends with [DONE], or with an error and without it. Never raises: the status was sent."""
        try:
            async for chunk in self._beating(heartbeat_seconds):
                if chunk is None:
                    yield ALIVE
                elif (made := self._answer.event(chunk)) is not None:
                    yield sse.event(made)
        except TinkermeshError as error:
            self._counted.outcome = error.code
            log.warning("a stream broke off: %s", error.message)
            yield sse.event({"error": error_object(error)})
            return
        except Exception:  # noqa: BLE001 - the process boundary: no status can tell it any more
            self._counted.outcome = "internal"
            log.exception("unexpected error in a stream")
            yield sse.event({"error": INTERNAL})
            return
        self._counted.outcome = "ok"
        if (usage := self._answer.usage_event()) is not None:
            yield sse.event(usage)
        yield DONE

    def end(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """However it ended, an error that has a status of its own included; whatever still runs for it is aborted."""
        if isinstance(error, Exception) and not isinstance(error, ClientDisconnect):
            self._counted.outcome = error.code if isinstance(error, TinkermeshError) else "internal"
        self._generation.cancel()
        if self._next is not None:
            self._next.cancel()
        answer = self._answer
        self._counted.ended(answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)

    async def _beating(self, seconds: float) -> AsyncIterator[pb.GeneratedChunk | None]:
        """The chunks; None where none came for `seconds`."""
        while True:
            self._next = self._next or begun(self._read())
            await asyncio.wait({self._next}, timeout=seconds)
            if not self._next.done():
                yield None
                continue
            chunk, self._next = self._next.result(), None
            if chunk is None:
                return
            yield chunk

    async def _read(self) -> pb.GeneratedChunk | None:
        chunk = await anext(self._chunks, None)
        if chunk is not None and chunk.tokens and self._answer.completion_tokens == 0:
            self._counted.first()
        return chunk


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` answers; it is cancelled when the client goes, and ClientGone is raised."""
    working, watching = begun(work), begun(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()


async def _gone(request: Request) -> None:
    """The body has been read: what comes next is the end."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_size(started: pb.GenerateStarted, wish: Wish, most: int) -> None:
    """Raises InvalidInput where an answer would hold more than `most` values."""
    each = 1 + (wish.logprobs or 0)
    values = sum(wish.per_prompt * prompt.max_tokens * each for prompt in started.prompts)
    if values > most:
        raise InvalidInput(
            f"max_tokens: the answer may hold {values} tokens and alternatives, the limit is {most}; "
            "ask for fewer tokens, choices or logprobs"
        )
