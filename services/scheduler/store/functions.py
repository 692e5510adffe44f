"""The Redis Functions of the mesh: one library out of functions/*.lua, versioned by a digest.

Files whose name starts with ``_`` come first and are visible to all; every other file is its own
block and calls ``register(name, callback)``. The server knows the library as
``tinkermesh_<layout>_<digest>`` and each function as ``<name>_<digest>``: releases of the scheduler
run side by side, and none ever replaces another's functions. libraries.py says which may go.

A function answers a refusal as ``refuse(code, text)``; `call` raises it as the class of that
code in services/common/errors.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.common.errors import BY_CODE, ContractViolation, TinkermeshError, Unavailable
from services.scheduler.store.connection import OUTAGES, is_cluster
from services.scheduler.store.durability import Confirmation
from services.scheduler.store.outages import reaching_redis, refuses_writes

FUNCTIONS = Path(__file__).parent / "functions"
LAYOUT = 1
"""Version of what lies in Redis. It grows when an older release could no longer read what this one writes."""

READERS = frozenset(
    {
        "ping",
        "requests_read",
        "registry_list",
        "sampling_waiting",
        "completions_waiting",
        "train_view",
        "breaker_read",
        "job_partial",
    }
)
"""Functions that write nothing; the library registers them with the flag no-writes."""

_REFUSAL = "TM:"

Argument = str | bytes | int | float


class Library(NamedTuple):
    name: str
    digest: str
    source: str


def library(directory: Path = FUNCTIONS, layout: int = LAYOUT) -> Library:
    """The one library made of all files, shared ones first."""
    files = sorted(directory.glob("*.lua"))
    shared = [path.read_text() for path in files if path.name.startswith("_")]
    blocks = [f"do -- {path.name}\n{path.read_text()}\nend" for path in files if not path.name.startswith("_")]
    readers = ", ".join(f"{name} = true" for name in sorted(READERS))
    body = "\n".join([f"local READERS = {{ {readers} }}", *shared, *blocks])
    digest = hashlib.blake2b(body.encode(), digest_size=6).hexdigest()
    name = f"tinkermesh_{layout}_{digest}"
    return Library(name, digest, f"#!lua name={name}\nlocal DIGEST = '{digest}'\n{body}")


class Functions:
    """Calls the library's functions; loads it when the server does not know it (a fresh or emptied server)."""

    def __init__(self, redis: Redis, held: Library | None = None) -> None:
        self._redis = redis
        self.library = held or library()
        self.confirmation: Confirmation | None = None
        """How every writing call is confirmed before it is answered; None = Redis' own answer is enough."""
        self.refusal = ""
        """Why nothing may be written now; "" = it may."""

    async def load(self) -> None:
        """Register the library, on every node. Raises Unavailable."""
        with reaching_redis():
            await cast("Any", self._redis.function_load(self.library.source, replace=True))

    async def call(self, name: str, keys: Sequence[str], *arguments: Argument) -> Any:
        """FCALL `name`. Raises the refusal's own type, Unavailable, or ContractViolation for a bug."""
        return await self.call_storing({}, 0, name, keys, *arguments)

    async def call_storing(
        self, values: Mapping[str, bytes], ttl_seconds: int, name: str, keys: Sequence[str], *arguments: Argument
    ) -> Any:
        """The same after a SET of each new value with a time to live, in one round trip. Raises as `call`.

        The function may take the time to live away: a repeat after a lost reply must not give it back.
        """
        if self.refusal and name not in READERS:
            raise Unavailable(self.refusal)
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
        command = ("FCALL", f"{name}_{self.library.digest}", len(keys), *keys, *arguments)
        wait = None if name in READERS else self.confirmation
        if not values and wait is None:
            send: Any = self._redis.execute_command  # untyped in redis-py
            return await send(*command)
        pipe: Any = self._redis.pipeline(transaction=False)
        for key, value in values.items():
            pipe.set(key, value, ex=ttl_seconds, nx=True)
        pipe.execute_command(*command)
        if wait is not None:
            self._add_confirmation(pipe, keys[0], wait)
        # A raising pipeline wraps the server's text in the command and its arguments.
        answers: list[Any] = await pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        if wait is None:
            return answers[-1]
        confirmed = len(wait.commands)
        if missing := wait.missing(answers[-confirmed:]):
            raise Unavailable(f"Redis has the write, but not {missing} yet; send the request again")
        return answers[-confirmed - 2]

    def _add_confirmation(self, pipe: Any, key: str, wait: Confirmation) -> None:
        """WAIT and WAITAOF wait for this connection's own last write, and a repeat of a call may write nothing.

        The small write in front makes them wait for whatever the first try wrote elsewhere, too.
        """
        pipe.execute_command("FCALL", f"confirm_{self.library.digest}", 1, key)
        node = {"target_nodes": cast("Any", self._redis).get_node_from_key(key)} if is_cluster(self._redis) else {}
        for command in wait.commands:
            pipe.execute_command(*command, **node)


def _refusal(name: str, error: ResponseError) -> TinkermeshError:
    text = str(error)
    _, marker, rest = text.partition(_REFUSAL)
    code, _, message = rest.partition(" ")
    if not marker or code not in BY_CODE:
        if refuses_writes(error):
            return Unavailable(f"Redis takes no writes: {text[:200]}")
        return ContractViolation(f"Redis function {name} failed: {text[:500]}")
    return BY_CODE[code](message)
