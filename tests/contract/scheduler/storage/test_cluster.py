"""A real cluster of three nodes: a pool in one slot, functions on every node, one node's death and return.

`make redis` runs the whole contract of the scheduler on such a cluster; this is the part that every test run has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import ContractViolation, Unavailable
from services.common.keyring import load_pepper
from services.scheduler.startup_checks import check_redis
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis, connect, on_each_node, scan_everywhere
from services.scheduler.store.consistency import ConsistencyCheck
from services.scheduler.store.durability import Confirmation
from services.scheduler.store.functions import Functions
from services.scheduler.store.libraries import LibraryShelf
from services.scheduler.store.memory import MemoryGate
from services.scheduler.store.payloads import FileBlobs
from tests.contract.scheduler.front.mesh import ALICE, FrontMesh, base_sampler, refused, sample_request, session
from tests.contract.scheduler.rig import POOL, running_mesh
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import FakeSampler
from tests.doubles.valkey_fleet import ValkeyCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    cluster = ValkeyCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def client(cluster: ValkeyCluster) -> AsyncIterator[Redis]:
    client = connect(cluster.url)
    await client.flushall()
    yield client
    await client.aclose()


async def test_the_training_path_runs_on_a_cluster_and_a_pool_lies_in_one_slot(
    cluster: ValkeyCluster, client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(cluster.url, tmp_path, replicas=2) as mesh:
        model = await mesh.opened("00000000-0000-4000-8000-000000000001")
        await mesh.batch(model, 1, (3, 4, 5))
        await mesh.step(model, 2)
        await mesh.done(await mesh.save(model, 3, "end"))
        names = [name async for batch in scan_everywhere(mesh.redis, f"{keys.PREFIX}:*") for name in batch]
        slots = {await cast("Any", mesh.redis).cluster_keyslot(n.decode()) for n in names if b"{p:" in n}
        assert len(names) > 10
        assert len(slots) == 1
        check = ConsistencyCheck(mesh.redis, Functions(client), FileBlobs(tmp_path), retention_ms=1000)
        assert await check.pool(POOL, alone=nobody_else) == []


async def nobody_else() -> bool:
    return True


async def test_sampling_and_sessions_run_on_a_cluster_through_the_death_of_a_node(
    cluster: ValkeyCluster, client: Redis, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    load_pepper(tmp_path / "pepper", create=True)
    mesh = FrontMesh(cluster.url, tmp_path / "store", tmp_path / "pepper")
    try:
        replica = await mesh.replica()
        sampler = FakeSampler(mesh.store_root)
        await sampler.start(scheduler=mesh.addresses)
        mesh.closers.append(sampler.stop)

        async def sampled(seq: int) -> bool:
            request_id = (await replica.scheduler.Submit(sample_request(sampling, seq))).request_id
            return bool(request_id.startswith(f"{POOL}."))

        async def serves() -> bool:
            try:
                return await sampled(2)
            except Exception as error:  # noqa: BLE001 - only "unavailable" may be said meanwhile
                assert "UNAVAILABLE" in str(error), error
                return False

        first = await session(replica)

        async def open_sampler() -> str:
            try:
                return await base_sampler(replica, first)
            except Exception:  # noqa: BLE001 - until the sampler has registered
                return ""

        sampling = await eventually(open_sampler)
        assert await sampled(1)
        port = await port_of(client, keys.pool_prefix(POOL))
        node = next(n for n in cluster.nodes if n.port == port)
        node.kill()
        async with refused(Unavailable):
            await replica.scheduler.Submit(sample_request(sampling, 2))
        node.start()
        await eventually(serves, 30.0)
        await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=first))
    finally:
        await mesh.stop()


async def port_of(client: Redis, key: str) -> int:
    await client.get(key)
    return int(cast("Any", client).get_node_from_key(key).port)


async def test_every_node_is_checked_filled_and_tidied(client: Redis) -> None:
    functions = Functions(client)
    await functions.load()
    assert await check_redis(client, "strict") is None
    assert await MemoryGate(client, 0.5).look() == 0.0
    for node in await on_each_node(client, "FUNCTION LIST"):
        assert len(node) == 1
    await on_each_node(client, "FUNCTION FLUSH")
    for pool in "abcdefgh":  # of all three nodes, which load it anew
        assert await functions.call("ping", [f"tm:{{p:{pool}}}"]) == b"pong"
    shelf = LibraryShelf(client, functions, "me")
    await shelf.beat()
    assert await shelf.alone()
    assert await shelf.drop_unused() == []


async def test_replicas_are_waited_for_on_the_node_that_wrote(client: Redis) -> None:
    functions = Functions(client)
    await functions.load()
    functions.confirmation = Confirmation(False, 1, timeout_ms=50)
    with pytest.raises(Unavailable, match="not on 1 replicas yet"):
        await functions.call("session_create", ["tm:{s:a}"], "t")


async def test_one_node_with_another_setting_is_found(client: Redis) -> None:
    node = cast("Any", client).get_primaries()[1]
    await cast("Any", client).execute_command("CONFIG SET", "appendfsync", "everysec", target_nodes=node)
    try:
        with pytest.raises(Exception, match="appendfsync everysec: set appendfsync always"):
            await check_redis(client, "strict")
    finally:
        await cast("Any", client).execute_command("CONFIG SET", "appendfsync", "always", target_nodes=node)


async def test_keys_of_two_slots_in_one_call_are_a_bug_that_shows(client: Redis) -> None:
    """Negative control: a function of this mesh that mixed tags could not run here."""
    functions = Functions(client)
    await functions.load()
    with pytest.raises((ContractViolation, Unavailable)):
        await functions.call("tenant_session", ["tm:{t:a}:sessions", "tm:{t:b}:k"], "s", 0, 0)
