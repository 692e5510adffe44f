"""The Console service over real training: a tenant's own by name, everybody else in numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import console_pb2 as pb
from tinkermesh.v1 import console_pb2_grpc, scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, InvalidInput, MissingResource
from services.scheduler.console import runs as console_runs
from services.scheduler.console.runs import state_of
from services.scheduler.store import keys
from services.scheduler.store.catalog_entries import RunFacts
from services.scheduler.store.console import RunState
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BASE,
    BOB,
    POOL,
    Replica,
    base_sampler,
    command,
    create_request,
    refused,
    result,
    sample_request,
    session,
)
from tests.contract.scheduler.front.owner import Owner
from tests.contract.scheduler.requests import batch_request

ADAM = types.AdamParams(learning_rate=0.25, beta1=0.9, beta2=0.95, eps=1e-8)
SCRIPT = '<script>alert("x")</script>'


class Reader:
    """The console as a gateway asks it, of one tenant."""

    def __init__(self, replica: Replica, tenant: str) -> None:
        self.stub: Any = console_pb2_grpc.ConsoleStub(replica.channel)
        self.tenant = tenant

    async def runs(self, text: str = "", offset: int = 0, limit: int = 50) -> pb.ListConsoleRunsReply:
        request = pb.ListConsoleRunsRequest(tenant_id=self.tenant, text=text, offset=offset, limit=limit)
        reply: pb.ListConsoleRunsReply = await self.stub.ListRuns(request)
        return reply

    async def run(self, run_id: str) -> pb.ConsoleRunDetails:
        reply: pb.ConsoleRunDetails = await self.stub.GetRun(
            pb.GetConsoleRunRequest(tenant_id=self.tenant, run_id=run_id)
        )
        return reply

    async def state(self) -> pb.ConsoleState:
        reply: pb.ConsoleState = await self.stub.GetState(pb.GetConsoleStateRequest(tenant_id=self.tenant))
        return reply


@pytest.fixture
def alice(owner: Owner) -> Reader:
    return Reader(owner.replica, ALICE)


@pytest.fixture
def bob(owner: Owner) -> Reader:
    return Reader(owner.replica, BOB)


async def trained(owner: Owner, lengths: tuple[int, ...] = (3, 5)) -> types.BatchResult:
    """A pass and a step of Alice's model."""
    owner.seq += 1
    request, payload = batch_request(owner.model, owner.seq, lengths, tenant=ALICE)
    request.payload, request.payload_bytes, request.fingerprint = payload, len(payload), bytes(16)
    loss = (await result(owner.replica, (await owner.replica.scheduler.Submit(request)).request_id)).batch
    owner.seq += 1
    step = command(owner.model, owner.seq, types.Command(optim_step=types.OptimStepBody(adam=ADAM)))
    await result(owner.replica, (await owner.replica.scheduler.Submit(step)).request_id)
    return loss


async def model_of(replica: Replica, tenant: str, metadata: str = "") -> str:
    request = create_request(await session(replica, tenant), tenant=tenant)
    request.command.create_model.user_metadata_json = metadata
    reply = await replica.scheduler.Submit(request)
    await result(replica, reply.request_id, tenant)
    return str(reply.model_id)


async def test_a_run_is_shown_with_what_its_futures_told(owner: Owner, alice: Reader) -> None:
    loss = await trained(owner)
    path = await owner.save("a")
    details = await alice.run(owner.model)
    (point,) = details.points
    assert (point.step, point.loss_sum, point.positions, point.learning_rate) == (1, loss.loss_sum, 8, 0.25)
    assert point.HasField("grad_norm") and details.stride == 1 and details.last_checkpoint == path
    run = details.run
    assert (run.base_model, run.rank, run.state, run.steps, run.queued) == (BASE, 4, "ready", 1, 0)
    assert run.last == point and run.created_unix_ms <= point.unix_ms <= run.last_request_unix_ms + 60_000
    (listed,) = (await alice.runs()).runs
    assert listed == run


async def test_a_foreign_run_is_refused_and_an_unknown_one_not_found_SEC_05(owner: Owner, bob: Reader) -> None:
    async with refused(Forbidden):
        await bob.run(owner.model)
    async with refused(MissingResource):
        await bob.run(f"{owner.session}:train:77")
    async with refused(MissingResource):
        await bob.run("../../etc")


async def test_of_others_there_are_numbers_only_SEC_05(
    owner: Owner, alice: Reader, bob: Reader, start_sampler: StartSampler
) -> None:
    await start_sampler()
    bobs = await model_of(owner.replica, BOB, '{"name": "secret of bob"}')
    owner.seq += 1
    bad = command(owner.model, owner.seq, types.Command(rejected="the secret text of a failure"))
    bad.command.batch.backward = True
    await result(owner.replica, (await owner.replica.scheduler.Submit(bad)).request_id)
    ours, theirs = await alice.state(), await bob.state()
    for state, runs, foreign in (
        (ours, await alice.runs(), (bobs, bobs.split(":")[0], BOB, "secret of bob")),
        (theirs, await bob.runs(), (owner.model, owner.session, ALICE, "secret text")),
    ):
        told = str(state) + str(runs)
        assert [word for word in foreign if word in told] == []
        (pool,) = state.pools
        assert (pool.slots_yours, pool.slots_others, pool.trainers) == (1, 1, 1)
        assert [(one.role, one.count) for one in pool.samplers] == [("both", 1)]
    (failure,) = ours.failures
    assert (failure.parent, failure.op, failure.user) == (owner.model, "forward_backward", True)
    assert failure.cause == "the secret text of a failure" and not theirs.failures


async def test_what_waits_is_counted_and_its_owner_sees_where(
    owner: Owner, alice: Reader, bob: Reader, start_sampler: StartSampler
) -> None:
    """A command whose predecessor is missing, and samples that no sampler takes."""
    request, payload = batch_request(owner.model, 9, (3,), tenant=ALICE)
    request.payload, request.payload_bytes, request.fingerprint = payload, len(payload), bytes(16)
    await owner.replica.scheduler.Submit(request)
    sampler = await start_sampler()
    sampling = await base_sampler(owner.replica, owner.session)
    sampler.faults.add("hold_before", "sample", times=0)
    for seq in range(3):
        await owner.replica.scheduler.Submit(sample_request(sampling, seq))
    ours, theirs = await alice.state(), await bob.state()
    (queue,) = ours.queues
    assert (queue.run_id, queue.depth, queue.misses_command, queue.waits_for_seq) == (owner.model, 1, True, 1)
    assert ours.pools[0].commands_yours == ours.pools[0].commands_all == 1
    assert ours.pools[0].samples_yours == 3
    assert ours.pools[0].samples_waiting + ours.pools[0].samples_running == 3
    assert not theirs.queues
    assert (theirs.pools[0].commands_yours, theirs.pools[0].commands_all) == (0, 1)
    assert theirs.pools[0].samples_yours == 0
    (run,) = (await alice.runs()).runs
    assert run.queued == 1
    sampler.faults.rules.clear()


async def enter(owner: Owner, count: int) -> None:
    """Runs of long ago, which no model is left of."""
    store = owner.replica.app._parts.catalog._store  # type: ignore[union-attr]
    facts = RunFacts(BASE, types.AdapterLayout(rank=4), '{"name": "old job"}', POOL)
    for number in range(count):
        await store.add_run(ALICE, f"{owner.session}:train:{number + 1}", 1_000 + number, facts, "project-x")


def named(name: str) -> str:
    return json.dumps({"name": name})


async def test_many_runs_come_in_pages_the_newest_first(owner: Owner, alice: Reader) -> None:
    await enter(owner, 120)
    first, second = await alice.runs(limit=100), await alice.runs(offset=100, limit=100)
    assert (len(first.runs), len(second.runs), first.total_count, second.total_count) == (100, 21, 121, 121)
    assert len({run.run_id for run in (*first.runs, *second.runs)}) == 121
    assert first.runs[0].run_id == owner.model and first.searched_count == 0
    created = [run.created_unix_ms for run in (*first.runs, *second.runs)]
    assert created == sorted(created, reverse=True)
    assert {run.state for run in second.runs} == {"ended"}


async def test_a_search_finds_by_any_word_and_says_how_far_it_looked(
    owner: Owner, alice: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model_of(owner.replica, ALICE, '{"name": "Warm START"}')
    await model_of(owner.replica, ALICE, '{"name": "cold start"}')
    found = await alice.runs("start warm")
    assert [run.name for run in found.runs] == ["Warm START"]
    assert (found.total_count, found.searched_count, found.known_count) == (1, 3, 3)
    assert [run.run_id for run in (await alice.runs(owner.model.upper())).runs] == [owner.model]
    assert len((await alice.runs(BASE)).runs) == 3
    assert [run.name for run in (await alice.runs("start", offset=1, limit=1)).runs] == ["Warm START"]
    assert not (await alice.runs("nobody called one so")).runs
    await enter(owner, 120)
    monkeypatch.setattr(console_runs, "SEARCHED", 100)
    bounded = await alice.runs("project-x")
    assert (bounded.total_count, bounded.searched_count, bounded.known_count) == (97, 100, 123)


async def test_a_page_out_of_bounds_is_refused(owner: Owner, alice: Reader) -> None:
    for limit in (0, 101):
        async with refused(InvalidInput, "limit"):
            await alice.runs(limit=limit)
    async with refused(InvalidInput, "text"):
        await alice.runs("x" * 201)


async def test_names_come_from_the_run_else_from_its_session_and_are_cut(owner: Owner, alice: Reader) -> None:
    scheduler = owner.replica.scheduler
    request = scheduler_pb2.CreateSessionRequest(tenant_id=ALICE, display_name="the session")
    display = (await scheduler.CreateSession(request)).session_id
    reply = await scheduler.Submit(create_request(display))
    await result(owner.replica, reply.request_id)
    odd = [await model_of(owner.replica, ALICE, text) for text in ('{"name": 5}', named("n" * 300))]
    script = await model_of(owner.replica, ALICE, named(SCRIPT))
    names = {run.run_id: run.name for run in (await alice.runs()).runs}
    assert names == {
        owner.model: "",
        reply.model_id: "the session",
        odd[0]: "",
        odd[1]: "n" * 200,
        script: SCRIPT,
    }
    large = await model_of(owner.replica, ALICE, named("x" * 9000))
    assert (await alice.run(large)).user_metadata_json == ""


async def test_a_run_whose_model_is_forgotten_is_still_listed(owner: Owner, alice: Reader, redis_client: Redis) -> None:
    await trained(owner)
    await redis_client.delete(keys.model(POOL, owner.model), keys.curve(POOL, owner.model))
    details = await alice.run(owner.model)
    assert (details.run.state, details.run.steps, list(details.points)) == ("ended", 0, [])
    assert not details.run.HasField("last")


@pytest.mark.parametrize(
    ("state", "phase", "shown"),
    [
        ("", "", "ended"),
        ("creating", "", "creating"),
        ("open", "", "ready"),
        ("open", "live", "ready"),
        ("open", "unseated", "parked"),
        ("open", "seating", "restoring"),
        ("open", "replaying", "restoring"),
        ("closing", "live", "closing"),
        ("closed", "", "closed"),
    ],
)
def test_a_models_state_in_the_readers_words(state: str, phase: str, shown: str) -> None:
    assert state_of(RunState(state, phase)) == shown
