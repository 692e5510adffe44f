"""Registration: one pool, one set of facts."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import admin_pb2
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import InvalidInput, UnknownId, from_rpc_error
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import FrontMesh, Replica, base_sampler, refused, session
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import sampler_facts
from tests.doubles.fake_trainer import trainer_facts


def _trainer(name: str = "trainer", incarnation: str = "1") -> pb.RegisterTrainerRequest:
    return pb.RegisterTrainerRequest(
        trainer_id=name, incarnation=incarnation, address="127.0.0.1:1", facts=trainer_facts()
    )


def _sampler(name: str = "sampler", incarnation: str = "1") -> pb.RegisterSamplerRequest:
    return pb.RegisterSamplerRequest(
        sampler_id=name,
        incarnation=incarnation,
        address="127.0.0.1:1",
        facts=sampler_facts(),
        role="both",
        max_running=4,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 513), ("model_fingerprint", "ff" * 16), ("base_model", "other/model"), ("dtype", "bfloat16")],
)
async def test_disagreeing_registration_is_refused_naming_both_ADD_01(
    replica: Replica, field: str, value: object
) -> None:
    await replica.registry.RegisterTrainer(_trainer())
    ours = getattr(trainer_facts(), field)
    for request, register in (
        (_sampler(), replica.registry.RegisterSampler),
        (_trainer("another"), replica.registry.RegisterTrainer),
    ):
        setattr(request.facts, field, value)
        async with refused(InvalidInput, f"facts.{field}", repr(ours), repr(value)):
            await register(request)
    assert (await replica.admin.ListSamplers(admin_pb2.ListSamplersRequest())).samplers == []
    pools = (await replica.scheduler.ListPools(pb.ListPoolsRequest())).pools
    assert [(p.facts == trainer_facts(), p.trainable, p.sampleable) for p in pools] == [(True, True, False)]


async def test_sampler_may_take_more_context_but_not_less_ADD_01(replica: Replica) -> None:
    await replica.registry.RegisterTrainer(_trainer())
    request = _sampler()
    request.facts.max_context += 1
    await replica.registry.RegisterSampler(request)
    request.facts.max_context -= 2
    async with refused(InvalidInput, "facts.max_context"):
        await replica.registry.RegisterSampler(request)


async def test_second_live_trainer_must_be_alike_and_a_new_one_may_differ(mesh: FrontMesh) -> None:
    replica = await mesh.replica(registration_seconds=0.5)
    await replica.registry.RegisterTrainer(_trainer("first"))
    larger = _trainer("second")
    larger.facts.slots += 8
    async with refused(InvalidInput, "facts.slots"):
        await replica.registry.RegisterTrainer(larger)

    async def registers() -> bool:
        """Once the first one's registration has run out."""
        try:
            await replica.registry.RegisterTrainer(larger)
        except grpc.aio.AioRpcError as error:
            assert isinstance(from_rpc_error(error), InvalidInput)
            return False
        return True

    await eventually(registers)
    pools = (await replica.scheduler.ListPools(pb.ListPoolsRequest())).pools
    assert pools[0].facts.slots == larger.facts.slots


async def test_sampler_first_then_trainer_makes_one_pool(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    (pool,) = (await replica.scheduler.ListPools(pb.ListPoolsRequest())).pools
    assert (pool.trainable, pool.sampleable) == (False, True)
    await base_sampler(replica, await session(replica))
    await replica.registry.RegisterTrainer(_trainer())
    (pool,) = (await replica.scheduler.ListPools(pb.ListPoolsRequest())).pools
    assert (pool.trainable, pool.sampleable, pool.facts) == (True, True, trainer_facts())


async def test_entry_without_renewal_is_gone(mesh: FrontMesh) -> None:
    replica = await mesh.replica(registration_seconds=1.5)
    await replica.registry.RegisterSampler(_sampler())

    async def sampleable() -> bool:
        return (await replica.scheduler.ListPools(pb.ListPoolsRequest())).pools[0].sampleable

    assert await sampleable()

    async def gone() -> bool:
        return not await sampleable()

    await eventually(gone)


async def test_incomplete_registration_names_what_is_missing(replica: Replica) -> None:
    request = _trainer()
    request.address = ""
    async with refused(InvalidInput, "address"):
        await replica.registry.RegisterTrainer(request)
    request = _trainer()
    request.facts.pool = "No Such Name"
    async with refused(InvalidInput, "facts.pool"):
        await replica.registry.RegisterTrainer(request)


async def test_trainers_of_several_cells_serve_side_by_side_and_those_of_one_stand_by_GAP_17(replica: Replica) -> None:
    for name, cell in (("a", ""), ("b", "1"), ("c", "1")):
        request = _trainer(name, incarnation=name)
        request.cell = cell
        await replica.registry.RegisterTrainer(request)
    parts = replica.app._parts
    assert parts is not None
    cells = await parts.directory.cells("double")
    assert {name: cell.any and cell.any.trainer_id for name, cell in cells.items()} == {"0": "a", "1": "b"}
    assert not await parts.directory.replaced("double", "1", "b")
    assert await parts.directory.replaced("double", "0", "b")
    listed = (await replica.admin.ListTrainers(admin_pb2.ListTrainersRequest())).trainers
    assert {one.trainer_id: one.cell for one in listed} == {"a": "0", "b": "1", "c": "1"}
    await replica.admin.DrainTrainer(admin_pb2.DrainTrainerRequest(pool="double", trainer_id="b"))
    cells = await parts.directory.cells("double")
    assert cells["1"].any is not None and cells["1"].any.trainer_id == "c"
    request = _trainer("d")
    request.cell = "No_Cell"
    async with refused(InvalidInput, "cell"):
        await replica.registry.RegisterTrainer(request)


async def test_drained_trainer_gets_no_work_until_it_resumes(replica: Replica) -> None:
    await replica.registry.RegisterTrainer(_trainer())
    parts = replica.app._parts
    assert parts is not None
    directory = parts.directory
    assert (await directory.cells("double"))["0"].serving is not None
    await replica.admin.DrainTrainer(admin_pb2.DrainTrainerRequest(pool="double", trainer_id="trainer"))
    drained = (await directory.cells("double"))["0"]
    assert drained.serving is None
    assert drained.drained is not None
    await replica.admin.ResumeTrainer(admin_pb2.ResumeTrainerRequest(pool="double", trainer_id="trainer"))
    assert (await directory.cells("double"))["0"].serving is not None
    async with refused(UnknownId):
        await replica.admin.DrainTrainer(admin_pb2.DrainTrainerRequest(pool="double", trainer_id="nobody"))


async def test_a_renewal_that_changes_nothing_leaves_the_directory_alone(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replica.registry.RegisterTrainer(_trainer())
    await replica.registry.RegisterSampler(_sampler())
    refreshed: list[str] = []
    parts = replica.app._parts
    assert parts is not None
    monkeypatch.setattr(parts.directory, "refresh", refreshed.append)
    await replica.registry.RegisterTrainer(_trainer())
    await replica.registry.RegisterSampler(_sampler())
    assert refreshed == []
    await replica.registry.RegisterSampler(_sampler(incarnation="2"))
    assert refreshed, "a change is seen at once"


async def test_a_pool_is_listed_although_the_replica_that_met_it_first_died_on_the_way(
    mesh: FrontMesh, redis_client: Redis
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    await replicas[0].registry.RegisterTrainer(_trainer())
    await cast("Any", redis_client.delete(keys.POOLS))  # as if it had died before this write
    await replicas[1].registry.RegisterTrainer(_trainer())
    assert await cast("Any", redis_client.smembers(keys.POOLS)) == {b"double"}
