"""One tenant floods a pool with 100,000 datums; what it costs the others, counted in units at the trainer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.ids import key_hash
from tests.contract.scheduler.requests import batch_request, new_session
from tests.contract.scheduler.rig import POOL, Mesh, running_mesh
from tests.doubles.eventually import eventually
from tests.doubles.valkey import ValkeyProcess

FLOOD = 100_000
PER_REQUEST = 1_000
UNIT_TOKENS = 4_096


async def flood(mesh: Mesh, model: str, tenant: str, datums: int) -> None:
    """Equal requests: their datums are made once."""
    request, payload = batch_request(model, 1, [3] * PER_REQUEST, tenant=tenant)
    for seq in range(1, datums // PER_REQUEST + 1):
        one = pb.SubmitRequest()
        one.CopyFrom(request)
        one.model.seq_id = seq
        await mesh.submit(one, payload)


@pytest.mark.timeout(180)
async def test_100_000_queued_datums_delay_anothers_first_by_two_units_at_most_PACK_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=UNIT_TOKENS) as mesh:
        flooding = await mesh.opened(new_session(), tenant="tenant-a")
        quiet = await mesh.opened(new_session(), tenant="tenant-b")
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        await flood(mesh, flooding, "tenant-a", FLOOD)
        lone = await mesh.batch(quiet, 1, [3], tenant="tenant-b")
        before, sent = len(mesh.passes()), time.monotonic()
        assert before == 0 and mesh.trainer.book.running_unit, "one unit of the flood runs and is held"
        mesh.trainer.faults.remove(hold)
        await mesh.done(lone)
        seconds = time.monotonic() - sent
        units = [{request for request, _ in entry["datums"]} for entry in mesh.passes()]
        place = next(number for number, requests in enumerate(units) if lone in requests)
        print(
            f"\nbehind {FLOOD:,} datums: unit {place + 1} after its arrival, {1000 * seconds:.0f} ms with the held unit"
        )
        assert place <= 1, "the running unit, then its own"


@pytest.mark.timeout(180)
async def test_weights_two_to_one_share_a_trainer_two_to_one_PACK_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    weights = {"tenant-a": 2.0}
    async with running_mesh(valkey.url, tmp_path, unit_tokens=480, weights=weights) as mesh:
        models = {name: await mesh.opened(new_session(), tenant=name) for name in ("tenant-a", "tenant-b")}
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        for name, model in models.items():
            await flood(mesh, model, name, 20_000)
        mesh.trainer.faults.remove(hold)
        owner = {}
        for name, model in models.items():
            owner |= dict.fromkeys(await _requests(mesh, model), name)
        await eventually(lambda: len(mesh.passes()) >= 61, 60)
        datums = [owner[request] for entry in mesh.passes()[1:61] for request, _ in entry["datums"]]
        share = datums.count("tenant-a") / datums.count("tenant-b")
        print(f"\nweights 2:1, {len(datums):,} datums in 60 units: shares {share:.3f}:1")
        assert 1.9 < share < 2.1


async def _requests(mesh: Mesh, model: str) -> set[str]:
    """Every request id a model was given."""
    return {f"{POOL}.{key_hash('train', model, str(seq))}.0" for seq in range(1, 21)}
