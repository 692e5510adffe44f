"""The training half of the state machine: typed calls of the functions in functions/*.lua."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.common.cells import FIRST_CELL
from services.common.errors import Unavailable
from services.scheduler.core.view import Clock
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.payloads import NOTHING, UPLOAD_TTL_SECONDS, Pending


@dataclass(frozen=True, slots=True)
class Submission:
    """One command as it is admitted; `tokens` = cost of all its datums."""

    key: str
    fingerprint: str
    tenant: str
    session: str
    model_id: str
    seq: str
    op: str
    command: bytes
    pack_key: str = ""
    datums: int = 1
    tokens: int = 0
    payload: Pending = NOTHING
    payload_bytes: int = 0
    traceparent: str = ""
    rejected: str = ""
    limits: str = ""  # of its tenant, see tenancy.limits


@dataclass(frozen=True, slots=True)
class Admitted:
    """`admitted_ms` (Redis TIME) is 0 when the key was used before."""

    request_id: str
    admitted_ms: int


@dataclass(frozen=True, slots=True)
class NewModel:
    """`cells`: where it may live; of none it waits in the first."""

    base_model: str
    layout: bytes
    user_metadata: str
    cells: tuple[str, ...] = ()


class UnitItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a unit, as stored beside it. An unload has no request.

    k request key, m model, f first datum, n datums, o op, s slot, c 1 for a create, w rejected
    requests in the model's window when the unit was issued, p path a load reads, t tokens, g the
    group the request ran in after an earlier failure.
    x marks recovery: seat | replay | durable. Of a replay: q log position, z its place among the model's
    items of the unit, v the recorded value to compare, e 1 = a step that was skipped.
    """

    m: str
    s: int
    o: str = ""
    k: str = ""
    f: int = 0
    n: int = 1
    c: int = 0
    w: int = 0
    p: str = ""
    t: int = 0
    g: str = ""
    x: str = ""
    q: int = 0
    z: int = 0
    v: str = ""
    e: int = 0


class Settlement(msgspec.Struct, frozen=True):
    """What one item came to: part | done | loaded | captured | fail | again | unloaded | quarantine, or of
    recovery: seated | seat_failed | replayed | recaptured | resave_failed | diverged | durable_captured |
    durable_failed.

    `a` and `b`: of a part its loss and positions, of a step its learning rate and gradient norm ("" = not known), of
    other actions as functions/units.lua says.
    `log`: JSON list of the entries it leaves in its model's log (functions/_log.lua), of a create its base.
    """

    action: str
    data: bytes | str = b""
    a: str = ""
    b: bytes | str = b""
    log: bytes | str = b""


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """When a durable point is due (`durable_idle_ms` after a model's last unit; 0 = not by idleness), how many
    deaths of the trainer make a command poison, whether idle models give up their slots, and how long a trainer may
    be away until others of its pool take its models (`cell_lost_ms`; 0 = they never do). A log of
    `log_limit_bytes` is full (0 = never): never before a durable point is due.
    """

    durable_every_steps: int = 16
    durable_log_bytes: int = 256 << 20
    durable_idle_ms: int = 60_000
    poison_deaths: int = 2
    paging: bool = True
    log_limit_bytes: int = 1 << 30
    cell_lost_ms: int = 120_000


@dataclass(frozen=True, slots=True)
class RunningUnit:
    unit_id: str
    incarnation: str
    work: bytes
    items: list[UnitItem]


def encode_items(items: Sequence[UnitItem]) -> bytes:
    """JSON for Lua: absent k means no request, numbers always present."""
    return msgspec.json.encode([_lua_item(item) for item in items])


def _lua_item(item: UnitItem) -> dict[str, str | int]:
    entry: dict[str, str | int] = {"m": item.m, "s": str(item.s), "o": item.o, "f": item.f, "n": item.n}
    entry |= {"c": item.c, "w": item.w, "p": item.p, "t": item.t, "g": item.g}
    if item.k:
        entry["k"] = item.k
    if item.x:
        entry |= {"x": item.x, "q": item.q, "z": item.z, "v": item.v, "e": item.e}
    return entry


def decode_items(data: bytes) -> list[UnitItem]:
    return msgspec.json.decode(data, type=list[UnitItem], strict=False)


DEFAULT_LIMITS = RecoveryLimits()


class TrainingStore:
    """Every method is one atomic transition. `retention_ms`: how long results stay."""

    def __init__(self, functions: Functions, retention_ms: int) -> None:
        self._call = functions.call
        self._storing = functions.call_storing
        self._retention = retention_ms

    # ---- admission -------------------------------------------------------------------------

    async def submit(self, pool: str, submission: Submission) -> Admitted:
        """Raises UnknownId, Forbidden, KeyConflict, ModelClosed, InvalidInput, Busy, Unavailable."""
        return await self._admit("train_submit", pool, submission)

    async def create(self, pool: str, submission: Submission, model: NewModel) -> Admitted:
        extra = (model.base_model, model.layout, model.user_metadata, " ".join(model.cells))
        return await self._admit("train_create", pool, submission, *extra)

    async def unload(self, pool: str, submission: Submission) -> Admitted:
        return await self._admit("train_unload", pool, submission)

    async def _admit(self, name: str, pool: str, s: Submission, *extra: str | bytes) -> Admitted:
        arguments = (s.key, s.fingerprint, s.tenant, s.session, s.model_id, s.seq, s.op, s.pack_key, s.datums, s.tokens)
        upload, segments = s.payload
        stored = (s.command, upload.name, upload.segments, s.payload_bytes, s.traceparent, s.rejected)
        prefix = [keys.pool_prefix(pool)]
        answer = await self._storing(
            segments, UPLOAD_TTL_SECONDS, name, prefix, self._retention, *arguments, *stored, *extra, s.limits
        )
        if isinstance(answer, bytes):
            return Admitted(answer.decode(), 0)
        return Admitted(answer[0].decode(), int(answer[1]))

    # ---- units -----------------------------------------------------------------------------

    async def issue(
        self,
        pool: str,
        term: int,
        unit_id: str,
        incarnation: str,
        work: bytes,
        items: Sequence[UnitItem],
        clock: Clock,
        cell: str = FIRST_CELL,
    ) -> bool:
        """Writes the unit before the trainer hears of it. False: the view has changed, nothing was written.

        Raises StaleFence, Unavailable.
        """
        tags = [part for tenant, tag in clock.finish.items() for part in (tenant, repr(tag))]
        head = (term, unit_id, cell, incarnation, work, encode_items(items), repr(clock.virtual))
        return bool(await self._call("unit_issue", [keys.pool_prefix(pool)], *head, *tags) == b"OK")

    async def settle(
        self, pool: str, term: int, unit_id: str, settlements: Sequence[Settlement], ran_ms: int = 0
    ) -> bool:
        """Settles a unit as a whole; `ran_ms`: how long the trainer executed it, 0 = not known.

        False: it was settled before. Raises StaleFence, Unavailable.
        """
        parts = [part for s in settlements for part in (s.action, s.data, s.a, s.b, s.log)]
        head = (term, self._retention, unit_id, ran_ms)
        answer = await self._call("unit_settle", [keys.pool_prefix(pool)], *head, *parts)
        return bool(answer == b"OK")

    async def refuse(self, pool: str, term: int, key: str, message: str) -> None:
        """The command at its turn fails (user) without the trainer."""
        await self._call("train_refuse", [keys.pool_prefix(pool)], term, self._retention, key, message)

    async def reset_clock(self, pool: str, term: int, cell: str = FIRST_CELL) -> None:
        """Nothing is waiting in the cell: the turns of tenants begin anew."""
        await self._call("clock_reset", [keys.pool_prefix(pool)], term, cell)

    async def snapshot_name(self, pool: str, term: int, model_id: str, name: str, key: str) -> str:
        """`name`, remembered as taken, or the model's next free number: the same whenever request `key` asks."""
        answer = await self._call("snapshot_name", [keys.pool_prefix(pool)], term, model_id, name, key)
        return str(answer.decode())

    async def artifact_done(self, pool: str, term: int, key: str, result: bytes, path: str) -> None:
        """Raises Unavailable while an earlier save of the same artifact has not settled."""
        arguments = (term, self._retention, key, "done", result, 0, path)
        if await self._call("artifact_settle", [keys.pool_prefix(pool)], *arguments) == b"later":
            raise Unavailable(f"an earlier save as {path} has not settled")

    async def artifact_failed(self, pool: str, term: int, key: str, category: int, message: str) -> None:
        arguments = (term, self._retention, key, "failed", message, category, "")
        await self._call("artifact_settle", [keys.pool_prefix(pool)], *arguments)

    # ---- the trainer's cell ----------------------------------------------------------------

    async def takeover_token(self, pool: str, term: int, incarnation: str, cell: str = FIRST_CELL) -> int:
        """Above those of all earlier takeovers of the cell. `incarnation`: who takes it over; "" = nobody does.

        Raises StaleFence, Unavailable (also when a cell was taken from this incarnation before).
        """
        return int(await self._call("takeover_token", [keys.pool_prefix(pool)], term, cell, incarnation))

    async def adopt(
        self,
        pool: str,
        term: int,
        incarnation: str,
        slots: int,
        limits: RecoveryLimits = DEFAULT_LIMITS,
        cell: str = FIRST_CELL,
    ) -> int:
        """Makes the cell's slots those of this incarnation; answers how many held slots were lost with another.

        Raises StaleFence, Unavailable (also when this is the trainer of another cell).
        """
        due = (limits.durable_every_steps, limits.durable_log_bytes, limits.durable_idle_ms)
        rest = (int(limits.paging), limits.log_limit_bytes)
        arguments = (term, self._retention, cell, incarnation, slots, limits.poison_deaths, *due, *rest)
        return int(await self._call("cell_adopt", [keys.pool_prefix(pool)], *arguments))

    async def repair(self, pool: str, term: int) -> int:
        """Quarantined slots get one more unload; answers how many."""
        return int(await self._call("cell_repair", [keys.pool_prefix(pool)], term))

    async def unseat(self, pool: str, term: int, model_id: str, *, leaving: bool = False) -> bool:
        """A live model nothing runs on gives up its slot, `leaving` its trainer for good or to somebody who waits.

        False: that is not so any more.
        """
        arguments = (term, self._retention, model_id, int(leaving))
        return bool(await self._call("train_unseat", [keys.pool_prefix(pool)], *arguments) == b"OK")

    async def seat_lost(self, pool: str, term: int, model_id: str, message: str) -> None:
        """A model cannot be restored from what is stored of it; its recovery fails once more."""
        await self._call("train_seat_failed", [keys.pool_prefix(pool)], term, self._retention, model_id, message)

    async def durable_settled(self, pool: str, term: int, model_id: str, unit_id: str, directory: str) -> bool:
        """A durable point is published ("" = it failed). False: not yet, a save it covers is still to be published."""
        arguments = (term, self._retention, model_id, unit_id, directory)
        return bool(await self._call("durable_settle", [keys.pool_prefix(pool)], *arguments) != b"later")

    async def not_run(self, pool: str, term: int, unit_id: str) -> None:
        """The unit's trainer ends in order and has refused it. Raises StaleFence, Unavailable."""
        await self._call("unit_not_run", [keys.pool_prefix(pool)], term, unit_id)

    async def open_breaker(self, pool: str, term: int, incarnation: str, reason: str, cell: str = FIRST_CELL) -> None:
        """This incarnation gets no more work. Raises StaleFence, Unavailable."""
        await self._call("breaker_open", [keys.pool_prefix(pool)], term, cell, incarnation, reason)

    async def close_breaker(self, pool: str, term: int, cell: str = FIRST_CELL) -> None:
        await self._call("breaker_close", [keys.pool_prefix(pool)], term, cell)

    async def broken(self, pool: str, cell: str = FIRST_CELL) -> tuple[str, str]:
        """(incarnation, reason) of the one that gets no work; "" while the breaker is closed."""
        incarnation, reason = await self._call("breaker_read", [keys.pool_prefix(pool)], cell)
        return incarnation.decode(), reason.decode()

    # ---- ends ------------------------------------------------------------------------------

    async def close_session(self, pool: str, session_id: str, category: int, reason: str, *, settle: bool) -> None:
        arguments = (self._retention, session_id, category, reason, int(settle))
        await self._call("train_close_session", [keys.pool_prefix(pool)], *arguments)

    async def expire_gaps(self, pool: str, term: int, timeout_ms: int) -> int:
        arguments = (term, self._retention, timeout_ms)
        return int(await self._call("train_expire_gaps", [keys.pool_prefix(pool)], *arguments))

    async def purge(self, pool: str, keep_ms: int) -> bool:
        """One portion of rows of long closed models whose session is over; False: none is left."""
        return bool(await self._call("train_purge", [keys.pool_prefix(pool)], keep_ms))

    async def expire_results(self, pool: str, limit: int = 200) -> int:
        return int(await self._call("expire_results", [keys.pool_prefix(pool)], limit))
