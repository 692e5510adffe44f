"""The Redis Functions of the mesh: one library out of functions/*.lua, versioned by a digest.

Files whose name starts with ``_`` come first and are visible to all; every other file is its own
block and calls ``register(name, callback)``. The server knows the library as ``tinkermesh_<digest>`` and each
function as ``<name>_<digest>``, so two releases of the scheduler can run side by side.

A function answers a refusal as ``refuse(code, text)``; `call` raises it as the class of that
code in services/common/errors.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.common.errors import BY_CODE, ContractViolation, TinkermeshError, Unavailable
from services.scheduler.store.connection import OUTAGES
from services.scheduler.store.outages import reaching_redis, refuses_writes

FUNCTIONS = Path(__file__).parent / "functions"
_REFUSAL = "TM:"

Argument = str | bytes | int | float


def library_source(directory: Path = FUNCTIONS) -> tuple[str, str]:
    """(digest, source) of the one library made of all files, shared ones first."""
    files = sorted(directory.glob("*.lua"))
    shared = [path.read_text() for path in files if path.name.startswith("_")]
    blocks = [f"do -- {path.name}\n{path.read_text()}\nend" for path in files if not path.name.startswith("_")]
    body = "\n".join([*shared, *blocks])
    digest = hashlib.blake2b(body.encode(), digest_size=6).hexdigest()
    head = f"#!lua name=tinkermesh_{digest}\nlocal DIGEST = '{digest}'\n"
    return digest, head + body


class Functions:
    """Calls the library's functions; loads it when the server does not know it (a fresh or emptied server)."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._digest, self._source = library_source()

    async def load(self) -> None:
        """Register the library unless this digest is there already. Raises Unavailable."""
        with reaching_redis():
            await cast("Any", self._redis.function_load(self._source, replace=True))

    async def call(self, name: str, keys: Sequence[str], *arguments: Argument) -> Any:
        """FCALL `name`. Raises the refusal's own type, Unavailable, or ContractViolation for a bug."""
        return await self.call_storing({}, 0, name, keys, *arguments)

    async def call_storing(
        self, values: Mapping[str, bytes], ttl_seconds: int, name: str, keys: Sequence[str], *arguments: Argument
    ) -> Any:
        """The same after a SET of each new value with a time to live, in one round trip. Raises as `call`.

        The function may take the time to live away: a repeat after a lost reply must not give it back.
        """
        try:
            return await self._call(values, ttl_seconds, name, keys, arguments)
        except ResponseError as error:
            if "Function not found" not in str(error):
                raise _refusal(name, error) from error
        except OUTAGES as error:
            raise Unavailable(f"Redis is away: {error}") from error
        await self.load()
        try:
            return await self._call(values, ttl_seconds, name, keys, arguments)
        except ResponseError as error:
            raise _refusal(name, error) from error
        except OUTAGES as error:
            raise Unavailable(f"Redis is away: {error}") from error

    async def _call(
        self,
        values: Mapping[str, bytes],
        ttl_seconds: int,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Argument],
    ) -> Any:
        command = ("FCALL", f"{name}_{self._digest}", len(keys), *keys, *arguments)
        if not values:
            send: Any = self._redis.execute_command  # untyped in redis-py
            return await send(*command)
        pipe: Any = self._redis.pipeline(transaction=False)
        for key, value in values.items():
            pipe.set(key, value, ex=ttl_seconds, nx=True)
        pipe.execute_command(*command)
        # A raising pipeline wraps the server's text in the command and its arguments.
        answers: list[Any] = await pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers[-1]


def _refusal(name: str, error: ResponseError) -> TinkermeshError:
    text = str(error)
    _, marker, rest = text.partition(_REFUSAL)
    code, _, message = rest.partition(" ")
    if not marker or code not in BY_CODE:
        if refuses_writes(error):
            return Unavailable(f"Redis takes no writes: {text[:200]}")
        return ContractViolation(f"Redis function {name} failed: {text[:500]}")
    return BY_CODE[code](message)
