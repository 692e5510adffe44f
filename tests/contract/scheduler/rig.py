"""The training path on real parts: Valkey, gRPC, the trainer double; only the directory is fixed."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.cells import FIRST_CELL
from services.common.ids import parse_request_id
from services.scheduler.artifacts import Artifacts
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.dispatch.training import Training
from services.scheduler.dispatch.training_parts import TrainingParts
from services.scheduler.ports import CellTrainer
from services.scheduler.results import Results
from services.scheduler.store import keys
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions
from services.scheduler.store.notices import Notices
from services.scheduler.store.payloads import FileBlobs
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sequences import SequenceStore
from tests.contract.scheduler.requests import (
    TENANT,
    batch_request,
    create_request,
    fingerprint,
    step_request,
)
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import POOL, FakeTrainer, trainer_facts

PEPPER = b"p" * 32
WAIT_SECONDS = 60.0


class FixedDirectory:
    """ports.TrainerDirectory over whatever trainers the test names: `registration` of the first cell, `others`."""

    def __init__(self, facts: types.PoolFacts) -> None:
        self.registration: pb.RegisterTrainerRequest | None = None
        self.others: dict[str, pb.RegisterTrainerRequest | None] = {}
        self.drained: set[str] = set()
        self._facts = facts

    async def cells(self, pool: str) -> dict[str, CellTrainer]:
        return {cell: self._cell(cell) for cell in (FIRST_CELL, *self.others)}

    def _cell(self, cell: str) -> CellTrainer:
        trainer = self.registration if cell == FIRST_CELL else self.others.get(cell)
        return CellTrainer(None, trainer) if cell in self.drained else CellTrainer(trainer)

    async def replaced(self, pool: str, cell: str, incarnation: str) -> bool:
        trainer = self._cell(cell).any
        return trainer is not None and trainer.incarnation != incarnation

    async def facts(self, pool: str) -> types.PoolFacts:
        return self._facts

    async def pools(self) -> list[types.PoolFacts]:
        return [self._facts]


class OnePool:
    """ports.ModelDirectory: every model lives in the double's pool."""

    async def pool_of_model(self, session_id: str, model_seq_id: int) -> str | None:
        return POOL


@dataclass
class Sink:
    """ports.SnapshotSink that remembers what was published."""

    published_paths: list[tuple[str, str]] = field(default_factory=list)
    error: Exception | None = None

    async def published(self, pool: str, tenant_id: str, path: str, version_directory: str, seq: int | None) -> str:
        if self.error is not None:
            raise self.error
        self.published_paths.append((path, version_directory))
        return "" if seq is None else f"sampling-{seq}"


class Replica:
    """One scheduler process's training half."""

    def __init__(self, url: str, directory: FixedDirectory, root: Path, sink: Sink, name: str, **options: Any) -> None:
        self.redis = connect(url)
        functions = Functions(self.redis)
        self.notices = Notices(self.redis)
        parts = TrainingParts(
            redis=self.redis,
            functions=functions,
            replica=f"{name}-{uuid.uuid4().hex[:8]}",
            directory=directory,
            sessions=OnePool(),
            snapshots=sink,
            artifacts=Artifacts(root, PEPPER, lambda _digest: "", CatalogStore(self.redis, functions)),
            sequences=SequenceStore(self.redis, functions, keep_ms=86_400_000),
            notices=self.notices,
            store_root=root,
            pepper=PEPPER,
            **options,
        )
        self.training = Training(parts)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self.notices.run()), asyncio.create_task(self.training.run())]
        await asyncio.wait_for(self.notices.subscribed.wait(), WAIT_SECONDS)

    async def stop(self) -> None:
        if self._tasks:
            await self.training.stop()
        await self._end()

    async def kill(self) -> None:
        """As kill -9: nothing is finished, the lease is not released."""
        campaigns = list(self.training._campaigns.values())
        self.training._leadership._leases = cast("Any", Deaf())
        await end_tasks([*campaigns, *self._tasks])
        await self._end()

    async def _end(self) -> None:
        await end_tasks(self._tasks)
        self._tasks = []
        await self.redis.aclose()


class Deaf:
    """A lease store of a dead process: the release never arrives."""

    async def release(self, pool: str, term: int) -> None:
        return


class Mesh:
    """Two-letter verbs for tests: create, batch, step, save …, then `result`."""

    def __init__(self, url: str, root: Path, **options: Any) -> None:
        slots, budget = options.pop("slots", 4), options.pop("unit_tokens", 4096)
        self.facts = trainer_facts(slots=slots, unit_tokens=budget)
        self.url, self.root, self.options = url, root, options
        self.directory = FixedDirectory(self.facts)
        self.sink = Sink()
        self.trainer = FakeTrainer(root, facts=self.facts)
        self.replicas: list[Replica] = []
        self.redis: Redis = connect(url)
        self.results = Results(
            RequestReader(self.redis, Functions(self.redis), FileBlobs(root / "payloads")), delivered_grace_ms=60_000
        )

    async def start(self, *, replicas: int = 1) -> None:
        await cast("Any", self.redis.sadd(keys.POOLS, POOL))
        await self.start_trainer()
        for number in range(replicas):
            await self.add_replica(f"replica{number}")

    async def start_trainer(self) -> None:
        await self.trainer.start()
        self.directory.registration = self.trainer.registration()

    async def replace_trainer(self) -> None:
        """The old incarnation dies, a new one with empty slots registers."""
        await self.trainer.stop()
        self.trainer = FakeTrainer(self.root, facts=self.facts)
        await self.start_trainer()

    async def add_replica(self, name: str = "replica") -> Replica:
        replica = Replica(self.url, self.directory, self.root, self.sink, name, **self.options)
        await replica.start()
        self.replicas.append(replica)
        return replica

    async def stop(self) -> None:
        for replica in self.replicas:
            await replica.stop()
        await self.trainer.stop()
        await self.redis.aclose()

    # ---- verbs -----------------------------------------------------------------------------

    async def submit(self, request: pb.SubmitRequest, payload: bytes = b"", replica: int = 0) -> str:
        if not request.fingerprint:
            request.fingerprint = fingerprint(request, payload)
        reply = await self.replicas[replica].training.admission.submit(request, payload, "")
        return reply.request_id

    async def create(self, session: str, seq: int = 0, *, tenant: str = TENANT, rank: int = 8, seed: int = 1) -> str:
        return await self.submit(create_request(session, seq, tenant=tenant, rank=rank, seed=seed))

    async def opened(self, session: str, seq: int = 0, *, tenant: str = TENANT) -> str:
        """The id of a model that is ready."""
        await self.done(await self.create(session, seq, tenant=tenant))
        return f"{session}:train:{seq}"

    async def batch(self, model: str, seq: int, lengths: Sequence[int] = (3,), **options: Any) -> str:
        request, payload = batch_request(model, seq, lengths, **options)
        return await self.submit(request, payload)

    async def step(self, model: str, seq: int, *, tenant: str = TENANT) -> str:
        return await self.submit(step_request(model, seq, tenant=tenant))

    async def command(self, model: str, seq: int, *, tenant: str = TENANT, **body: Any) -> str:
        key = pb.ModelKey(model_id=model, seq_id=seq)
        return await self.submit(pb.SubmitRequest(tenant_id=tenant, model=key, command=types.Command(**body)))

    async def save(self, model: str, seq: int, name: str = "", *, overwrite: bool = False) -> str:
        return await self.command(model, seq, save_weights=types.SaveWeightsBody(name=name, overwrite=overwrite))

    async def unload(self, model: str, *, tenant: str = TENANT) -> str:
        command = types.Command(unload_model=types.UnloadModelBody())
        return await self.submit(
            pb.SubmitRequest(tenant_id=tenant, unload=pb.UnloadKey(model_id=model), command=command)
        )

    # ---- looking ---------------------------------------------------------------------------

    async def state(self, request_id: str) -> str:
        row = parse_request_id(request_id)
        value = await cast("Any", self.redis.hget(keys.req(row.pool, row.key), "state"))
        return (value or b"").decode()

    async def settled(self, request_id: str, tenant: str = "") -> types.Result:
        async def over() -> bool:
            return await self.state(request_id) in ("done", "failed")

        await self.until(over)
        row = parse_request_id(request_id)
        owner = tenant or (await cast("Any", self.redis.hget(keys.req(row.pool, row.key), "tenant"))).decode()
        return types.Result.FromString(await self.results.whole(request_id, owner))

    async def done(self, request_id: str) -> types.Result:
        result = await self.settled(request_id)
        assert result.WhichOneof("outcome") != "failure", result.failure.message
        return result

    async def failed(self, request_id: str) -> types.Failure:
        result = await self.settled(request_id)
        assert result.WhichOneof("outcome") == "failure", result
        return result.failure

    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.trainer.journal.entries]

    def passes(self) -> list[dict[str, Any]]:
        return [entry for entry in self.trainer.journal.entries if entry["kind"] == "pass"]

    async def slots(self) -> dict[int, str]:
        found = await cast("Any", self.redis.hgetall(keys.slots(POOL)))
        return {int(slot): holder.decode() for slot, holder in found.items()}

    async def until(self, condition: Callable[[], Awaitable[bool] | bool]) -> None:
        await eventually(condition, WAIT_SECONDS)


@contextlib.asynccontextmanager
async def running_mesh(url: str, root: Path, *, replicas: int = 1, **options: Any) -> AsyncIterator[Mesh]:
    mesh = Mesh(url, root, **options)
    await mesh.start(replicas=replicas)
    try:
        yield mesh
    finally:
        await mesh.stop()
