"""Operators look at samplers, load adapters there, and take a sampler out of use."""

from __future__ import annotations

import logging

import pytest
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.errors import InvalidInput, UnknownId
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    POOL,
    FrontMesh,
    Replica,
    base_sampler,
    refused,
    result,
    sample_request,
    session,
)
from tests.contract.scheduler.front.test_front_operations import said
from tests.doubles import published
from tests.doubles.eventually import eventually


async def engines(replica: Replica) -> dict[str, pb.EngineReport]:
    reply = await replica.admin.ListEngines(pb.ListEnginesRequest(pool=POOL))
    return {one.sampler_id: one for one in reply.engines}


def adapter(mesh: FrontMesh) -> types.AdapterRef:
    meta = ArtifactMeta(model_id="m", kind="sampler_weights", name="v1")
    path, _ = published.publish(mesh.store_root, "runs/m/sampler_weights/v1", meta, {"weights": "4d", "rank": 4})
    return types.AdapterRef(name="m@v1", path=path)


async def test_engines_tell_their_role_and_partners(replica: Replica, start_sampler: StartSampler) -> None:
    for name, role in (("one", "prefill"), ("two", "decode"), ("three", "both")):
        await start_sampler(sampler_id=name, role=role)
    found = await engines(replica)
    assert {name: (one.role, list(one.partners)) for name, one in found.items()} == {
        "one": ("prefill", ["two"]),
        "two": ("decode", ["one"]),
        "three": ("both", []),
    }
    assert {one.unpaired + one.problem for one in found.values()} == {""}
    assert {one.engine for one in found.values()} == {"double 1"}


async def test_a_pair_that_does_not_match_is_named_with_the_field(
    replica: Replica, start_sampler: StartSampler, caplog: pytest.LogCaptureFixture
) -> None:
    await start_sampler(sampler_id="one", role="prefill")
    other = await start_sampler(sampler_id="two", role="decode")
    assert other.kv is not None
    await other.fall_silent()
    other.kv.hash_seed = "a secret"
    other.incarnation = "second life"
    await replica.registry.RegisterSampler(other.registration())
    found = await engines(replica)
    assert found["one"].unpaired == "two: hash_seed differs (not shown, not shown)"
    listed = (await replica.admin.ListSamplers(pb.ListSamplersRequest(pool=POOL))).samplers
    assert {one.unpaired.split(": ")[1].split()[0] for one in listed} == {"hash_seed"}
    assert found["two"].unpaired == "one: hash_seed differs (not shown, not shown)"
    assert "sampler two has no partner: one: hash_seed differs" in caplog.text
    assert "a secret" not in caplog.text


async def test_an_adapter_is_loaded_everywhere_and_each_problem_listed_SAMP_04(
    mesh: FrontMesh, replica: Replica, start_sampler: StartSampler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = [await start_sampler(sampler_id=name) for name in ("one", "two")]
    ref = adapter(mesh)
    request = pb.AdminLoadAdapterRequest(pool=POOL, name=ref.name, path=ref.path)
    second.faults.add("fail_user", "load_adapter", times=1)
    outcomes = {one.sampler_id: one for one in (await replica.admin.LoadAdapter(request)).samplers}
    assert (outcomes["one"].changed, outcomes["one"].problem) == (True, "")
    assert "cannot be served" in outcomes["two"].problem
    again = {one.sampler_id: one.changed for one in (await replica.admin.LoadAdapter(request)).samplers}
    assert again == {"one": False, "two": True}
    assert ref.name in first.loaded and ref.name in second.loaded
    assert {entry["op"] for entry in said(caplog)} == {"load adapter"}
    first.loaded[ref.name].in_use = 1
    assert [one.in_use for one in (await engines(replica))["one"].adapters] == [1]
    unload = pb.AdminUnloadAdapterRequest(pool=POOL, name=ref.name)
    gone = {one.sampler_id: one for one in (await replica.admin.UnloadAdapter(unload)).samplers}
    assert "in use" in gone["one"].problem
    assert gone["two"].changed and ref.name not in second.loaded


async def test_loading_by_hand_takes_no_nonsense(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    async with refused(InvalidInput, "name: 0 characters"):
        await replica.admin.LoadAdapter(pb.AdminLoadAdapterRequest(pool=POOL, path="p"))
    async with refused(UnknownId, "nobody"):
        request = pb.AdminLoadAdapterRequest(pool=POOL, sampler_id="nobody", name="m@v1", path="p")
        await replica.admin.LoadAdapter(request)
    escaping = pb.AdminLoadAdapterRequest(pool=POOL, name="m@v1", path="../../etc")
    (outcome,) = (await replica.admin.LoadAdapter(escaping)).samplers
    assert "leaves the store" in outcome.problem


async def test_every_replica_leaves_a_drained_sampler_alone_until_it_is_resumed(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    first, second = [await start_sampler(sampler_id=name) for name in ("one", "two")]
    samplers = [await base_sampler(replica, await session(replica)) for replica in replicas]
    await replicas[0].admin.DrainSampler(pb.DrainSamplerRequest(pool=POOL, sampler_id="one"))
    for replica in replicas:

        async def drained(replica: Replica = replica) -> bool:
            return (await engines(replica))["one"].draining

        await eventually(drained)
    for seq in range(4):
        for replica, sampler in zip(replicas, samplers, strict=True):
            reply = await replica.scheduler.Submit(sample_request(sampler, seq))
            assert (await result(replica, reply.request_id)).HasField("sample")
    assert (len(first.journal.entries), len(second.journal.entries)) == (0, 8)
    await replicas[1].admin.ResumeSampler(pb.ResumeSamplerRequest(pool=POOL, sampler_id="one"))
    await replicas[0].admin.DrainSampler(pb.DrainSamplerRequest(pool=POOL, sampler_id="two"))

    async def swapped() -> bool:
        found = [await engines(replica) for replica in replicas]
        return all(one["two"].draining and not one["one"].draining for one in found)

    await eventually(swapped)
    reply = await replicas[0].scheduler.Submit(sample_request(samplers[0], 9))
    await result(replicas[0], reply.request_id)
    assert (len(first.journal.entries), len(second.journal.entries)) == (1, 8)


async def test_an_unknown_sampler_is_not_drained(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    async with refused(UnknownId, "sampler_id nobody"):
        await replica.admin.DrainSampler(pb.DrainSamplerRequest(pool=POOL, sampler_id="nobody"))
