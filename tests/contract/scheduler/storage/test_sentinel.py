"""A primary dies under its sentinels: the mesh goes on with the promoted replica, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import TinkermeshError, Unavailable
from services.common.keyring import load_pepper
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions
from tests.contract.scheduler.front.mesh import ALICE, FrontMesh, Replica, refused, session
from tests.doubles.eventually import eventually
from tests.doubles.valkey_fleet import SentinelFleet

FAILOVER_SECONDS = 30.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelFleet]:
    fleet = SentinelFleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
async def replica(fleet: SentinelFleet, tmp_path: Path) -> AsyncIterator[Replica]:
    """A scheduler that answers only once the replica has the write, too."""
    (tmp_path / "store").mkdir()
    load_pepper(tmp_path / "pepper", create=True)
    mesh = FrontMesh(fleet.url, tmp_path / "store", tmp_path / "pepper")
    yield await mesh.replica(redis_replicas=1)
    await mesh.stop()


async def beats(replica: Replica, session_id: str) -> bool:
    try:
        await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id))
    except Exception as error:  # noqa: BLE001 - only the answer "gone" would be wrong
        assert "UNAVAILABLE" in str(error), error
        return False
    return True


async def acknowledge(replica: Replica, made: list[str], stop: asyncio.Event) -> None:
    """Adds the ids of sessions that were answered; what was refused was not."""
    while not stop.is_set():
        try:
            made.append(await session(replica))
        except Exception as error:  # noqa: BLE001 - as above
            assert "UNAVAILABLE" in str(error), error
            await asyncio.sleep(0.05)


async def test_failover_keeps_everything_acknowledged_and_the_mesh_goes_on_by_itself(
    fleet: SentinelFleet, replica: Replica
) -> None:
    stop, made = asyncio.Event(), list[str]()
    load = asyncio.create_task(acknowledge(replica, made, stop))
    first = await session(replica)
    old = fleet.primary()
    await eventually(lambda: len(made) > 20, FAILOVER_SECONDS)
    old.kill()
    await eventually(lambda: fleet.primary() is not old, FAILOVER_SECONDS)
    # Alone, the new primary has no replica: nothing is acknowledged that a second failover could forget.
    async with refused(Unavailable):
        await session(replica)
    old.settings["replicaof"] = f"127.0.0.1 {fleet.primary().port}"
    old.start()
    await eventually(lambda: beats(replica, first), FAILOVER_SECONDS)
    before = len(made)
    await eventually(lambda: len(made) > before + 20, FAILOVER_SECONDS)
    stop.set()
    await load
    async with connect(fleet.url) as client:
        states = [await client.hget(f"tm:{{s:{name}}}:session", "state") for name in made]
    assert set(states) == {b"open"}


@pytest.mark.skipif(not os.environ.get("TINKERMESH_TEST_WHOLE_REDIS"), reason="runs with make redis")
async def test_a_primary_that_was_only_asleep_acknowledges_nothing_when_it_wakes(
    fleet: SentinelFleet, replica: Replica
) -> None:
    """State never forks: the old primary has no replica left to confirm with."""
    first = await session(replica)
    old = fleet.primary()
    old.pause()
    await eventually(lambda: fleet.primary() is not old, FAILOVER_SECONDS)
    stop, made = asyncio.Event(), [first]
    load = asyncio.create_task(acknowledge(replica, made, stop))
    old.resume()  # it believes to be the primary until a sentinel tells it
    await eventually(lambda: fleet.replica_online(fleet.primary()), FAILOVER_SECONDS)
    await eventually(lambda: beats(replica, first), FAILOVER_SECONDS)
    stop.set()
    await load
    async with connect(fleet.url) as client:
        assert {await client.hget(f"tm:{{s:{name}}}:session", "state") for name in made} == {b"open"}


async def test_sentinels_that_name_nobody_are_an_outage(fleet: SentinelFleet) -> None:
    wrong = connect(fleet.url.replace("master=mesh", "master=other"))
    with pytest.raises(TinkermeshError, match="Redis is away"):
        await Functions(wrong).call("ping", ["tm:{p:a}"])
    await wrong.aclose()
