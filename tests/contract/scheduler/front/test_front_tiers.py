"""Operators look at the tiers of cache blocks, and drop blocks of them, through the scheduler."""

from __future__ import annotations

import logging

import pytest
from tinkermesh.v1 import admin_pb2 as pb

from services.common.errors import InvalidInput, UnknownId
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import POOL, Replica, refused
from tests.contract.scheduler.front.test_front_operations import said
from tests.doubles.fake_sampler import kv_facts, sampler_facts
from tests.doubles.tier import MemoryTier

KEYS = [f"{number:064x}" for number in range(5)]


async def tiers(replica: Replica) -> dict[str, pb.TierReport]:
    reply = await replica.admin.ListTiers(pb.ListTiersRequest())
    return {report.sampler_id: report for report in reply.tiers}


async def test_each_sampler_with_a_role_tells_its_tier_and_a_silent_one_is_named(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    await start_trainer()
    shared = MemoryTier(set(KEYS))
    await start_sampler(sampler_id="whole")
    prefill = await start_sampler(sampler_id="p", role="prefill", tier=shared)
    decode = await start_sampler(sampler_id="d", role="decode", tier=shared)
    found = await tiers(replica)
    assert {name: (report.role, report.status.blocks) for name, report in found.items()} == {
        "p": ("prefill", 5),
        "d": ("decode", 5),
    }
    assert found["p"].status.kv == prefill.kv
    shared.away = True
    assert not (await tiers(replica))["p"].status.HasField("catalogued")
    await decode.stop()
    report = (await tiers(replica)).get("d")
    assert report is None or report.problem
    async with refused(UnknownId, "nowhere"):
        await replica.admin.ListTiers(pb.ListTiersRequest(pool="nowhere"))


async def test_blocks_are_dropped_once_in_every_tier_of_a_pool(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await start_trainer()
    one, two = MemoryTier(set(KEYS)), MemoryTier(set(KEYS[:3]))
    await start_sampler(sampler_id="p1", role="prefill", tier=one)
    await start_sampler(sampler_id="d1", role="decode", tier=one)
    other = kv_facts(sampler_facts())
    other.tier = "second"
    await start_sampler(sampler_id="p2", role="prefill", tier=two, kv=other)
    request = pb.AdminInvalidateBlocksRequest(pool=POOL, keys=KEYS[:2])
    reply = await replica.admin.InvalidateBlocks(request)
    assert {tier.tier: (tier.dropped, tier.problem) for tier in reply.tiers} == {
        "tier-double": (2, ""),
        "second": (2, ""),
    }
    assert (one.keys, two.keys) == (set(KEYS[2:]), {KEYS[2]})
    assert said(caplog)[-1]["op"] == "invalidate blocks"
    two.away = True
    reply = await replica.admin.InvalidateBlocks(pb.AdminInvalidateBlocksRequest(pool=POOL, all=True))
    assert {tier.tier: (tier.dropped, tier.problem != "") for tier in reply.tiers} == {
        "tier-double": (3, False),
        "second": (0, True),
    }
    assert two.keys == {KEYS[2]}


async def test_a_drop_that_could_not_be_meant_is_refused(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    await start_trainer()
    tier = MemoryTier(set(KEYS))
    await start_sampler(sampler_id="p", role="prefill", tier=tier)
    async with refused(InvalidInput, "pool: missing"):
        await replica.admin.InvalidateBlocks(pb.AdminInvalidateBlocksRequest(all=True))
    async with refused(InvalidInput, "one of the two"):
        await replica.admin.InvalidateBlocks(pb.AdminInvalidateBlocksRequest(pool=POOL))
    async with refused(InvalidInput, "is no key"):
        await replica.admin.InvalidateBlocks(pb.AdminInvalidateBlocksRequest(pool=POOL, keys=["../x"]))
    async with refused(UnknownId, "nowhere"):
        await replica.admin.InvalidateBlocks(pb.AdminInvalidateBlocksRequest(pool="nowhere", all=True))
    assert tier.keys == set(KEYS)
