"""Faults of engines, memory and store turn alerts on; silent before each, seen by a real Prometheus.

The clock of the rules is hurried: tests/doubles/prometheus.py says how.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from services.scheduler.core.breaker import TRIPS
from tests.doubles.eventually import until
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.job_client import JobClient
from tests.doubles.mesh import MeshProcesses
from tests.doubles.prometheus import Prometheus, required
from tests.doubles.small_disk import full, small_disk
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh.alerting import FAULT_SECONDS, seen, silent, watched
from tests.mesh.busy import submitted
from tests.mesh.main_path import adam, base_sampler, created, done, outcome, sample, saved, snapshot_sampler

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]
POISON_LENGTH = 11
REFUSED = 8
CUT: Json = {"kind": "sample.stream", "action": "cut_token", "times": 0}
BROKEN = 12


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory; the store in it is a file system of its own where mounting is permitted."""
    directory = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(pytest.skip.Exception):
            stack.enter_context(small_disk(directory / "store", 32))
        yield directory


@pytest.fixture(scope="module")
def mesh(disk: Path) -> Iterator[MeshProcesses]:
    required("prometheus")
    variables = {"TINKERMESH_SCHEDULER_DURABLE_EVERY_STEPS": "2", "TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "1"}
    with MeshProcesses(disk, variables=variables, trainer_options=["--slots", "32"]) as running:
        yield running


@pytest.fixture(scope="module")
def server(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with watched(mesh, tmp_path_factory.mktemp("prometheus")) as made:
        yield made


@pytest.fixture
async def client(mesh: MeshProcesses) -> Iterator[WireClient]:  # type: ignore[misc]
    made = WireClient([mesh.base_url], mesh.api_key)
    yield made
    mesh.inject("trainer", [])
    mesh.inject("sampler", [])
    await made.close()


async def on(server: Prometheus, *alerts: str) -> None:
    await asyncio.to_thread(seen, server, *alerts)


async def off(server: Prometheus, *alerts: str) -> None:
    await asyncio.to_thread(silent, server, *alerts)


async def stepped(client: WireClient, steps: int = 1) -> str:
    """A model with so many optimizer steps."""
    model = await created(client, await client.session())
    for step in range(steps):
        await done(client, "/forward_backward", batch(model, 2 * step + 1, seed=1))
        await done(client, "/optim_step", adam(model, 2 * step + 2))
    return model


async def test_units_that_fail_turn_on_the_rate_of_failures_and_the_breaker(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    session = await client.session()
    models = [await created(client, session, number) for number in range(TRIPS + 1)]
    await off(server, "TinkermeshRequestsFail", "TinkermeshBreakerOpen")
    not_back_yet: Json = {"kind": "init", "action": "hold_before", "times": 0}
    mesh.inject("trainer", [{"kind": "pass", "action": "fail", "times": 0}, not_back_yet])
    for model in models[:TRIPS]:
        assert (await outcome(client, "/forward_backward", batch(model, 1, seed=1)))["category"] == "server"
    await on(server, "TinkermeshRequestsFail", "TinkermeshBreakerOpen")
    mesh.inject("trainer", [])
    await done(client, "/forward_backward", batch(models[TRIPS], 1, seed=1))
    await off(server, "TinkermeshBreakerOpen")


async def test_a_slot_that_is_not_emptied_is_told(mesh: MeshProcesses, server: Prometheus, client: WireClient) -> None:
    model = await stepped(client)
    await off(server, "TinkermeshSlotsQuarantined")
    mesh.inject("trainer", [{"kind": "unload", "action": "fail", "times": 0}])
    await submitted(client, "/unload_model", {"model_id": model})
    await on(server, "TinkermeshSlotsQuarantined")
    mesh.inject("trainer", [])
    mesh.kill("trainer")
    await off(server, "TinkermeshSlotsQuarantined")


async def test_a_request_that_kills_its_trainer_twice_is_told(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    model = await stepped(client)
    await off(server, "TinkermeshPoisonedRequests")
    mesh.inject("trainer", [{"kind": "pass", "action": "die_before", "times": 0, "length": POISON_LENGTH}])
    poison = await submitted(client, "/forward_backward", batch(model, 3, seed=1, length=POISON_LENGTH))
    await on(server, "TinkermeshPoisonedRequests")
    assert "error" in await client.future(poison)


async def test_a_replay_that_comes_to_something_else_is_told(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    """The next trainer skips a step that this one has made."""
    await off(server, "TinkermeshReplayDiffers")
    model = await stepped(client)
    mesh.inject("trainer", [{"kind": "optim", "action": "skip_step", "times": 0}])
    mesh.kill("trainer")
    waiting = await submitted(client, "/forward_backward", batch(model, 3, seed=2))
    await on(server, "TinkermeshReplayDiffers")
    assert "recovery stopped" in (await client.future(waiting))["error"]


async def test_durable_points_that_are_not_written_are_told(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    await off(server, "TinkermeshDurablePointsFail")
    mesh.inject("trainer", [{"kind": "publish", "action": "fail", "times": 0}])
    await stepped(client, steps=2)
    await on(server, "TinkermeshDurablePointsFail")


async def test_a_sampler_with_nearly_all_it_takes_is_told(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    (most,) = server.query("tinkermesh_sampler_sequences_limit")
    sampler = await base_sampler(client, await client.session())
    await off(server, "TinkermeshSamplersFull")
    mesh.inject("sampler", [{"kind": "sample", "action": "hold_before", "times": 0}])
    for number in range(int(most["value"][1])):
        await submitted(client, "/asample", sample(sampler, number, tokens=2))
    await on(server, "TinkermeshSamplersFull")
    mesh.inject("sampler", [])
    await off(server, "TinkermeshSamplersFull")


async def test_adapters_that_are_not_loaded_are_told_and_no_sample_of_them_hangs(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    session = await client.session()
    path = await saved(client, await created(client, session), 1, "stalled", "save_weights_for_sampler")
    mesh.kill("sampler")  # the next one has loaded nothing
    await off(server, "TinkermeshAdapterStall")
    mesh.inject("sampler", [{"kind": "load_adapter", "action": "fail_user", "times": 0}])
    sampler = await snapshot_sampler(client, session, path)
    failed = [await outcome(client, "/asample", sample(sampler, number)) for number in range(1, REFUSED + 1)]
    assert all("cannot be served" in one["error"] for one in failed)
    await on(server, "TinkermeshAdapterStall")
    mesh.inject("sampler", [])
    await done(client, "/asample", sample(sampler, REFUSED + 1))
    await off(server, "TinkermeshAdapterStall")


async def test_completions_whose_streams_break_are_told(
    mesh: MeshProcesses, server: Prometheus, client: WireClient
) -> None:
    """One after the other: a counter that appears at its first failure has not grown, for Prometheus."""
    body = {"model": BASE_MODEL, "prompt": "the people", "max_tokens": 8}
    headers = {"Authorization": f"Bearer {mesh.api_key}"}
    async with httpx.AsyncClient(base_url=f"{mesh.base_url}/oai/api/v1", headers=headers, trust_env=False) as http:
        assert (await http.post("/completions", json=body)).status_code == 200
        await off(server, "TinkermeshCompletionsFail")
        mesh.inject("sampler", [CUT])
        for _ in range(BROKEN):
            assert (await http.post("/completions", json=body)).status_code >= 500
            await asyncio.sleep(1.0)
        await on(server, "TinkermeshCompletionsFail")
        mesh.inject("sampler", [])
        assert (await http.post("/completions", json=body)).status_code == 200
    await off(server, "TinkermeshCompletionsFail")


@pytest.mark.usefixtures("client")
async def test_tasks_of_a_job_that_fail_through_the_mesh_are_told(mesh: MeshProcesses, server: Prometheus) -> None:
    jobs = JobClient(mesh.base_url, mesh.api_key)
    tasks = [{"input": [5 + number], "max_tokens": 8} for number in range(BROKEN)]
    await jobs.ended(await jobs.create(tasks))
    await off(server, "TinkermeshJobTasksFail")
    mesh.inject("sampler", [CUT])
    job_id = await jobs.create(tasks)
    await on(server, "TinkermeshJobTasksFail")
    mesh.inject("sampler", [])
    assert (await jobs.ended(job_id))["state"] == "failed"
    assert {one["error"]["category"] for one in await jobs.results(job_id)} == {"server"}
    await off(server, "TinkermeshJobTasksFail")
    await jobs.close()


def test_a_redis_whose_memory_is_nearly_at_the_mark_is_told(mesh: MeshProcesses, server: Prometheus) -> None:
    """Four fifths full, whatever it frees meanwhile; the mark is at 85 %, the alert at nine tenths of that."""
    silent(server, "TinkermeshRedisMemoryHigh")
    with Redis.from_url(f"redis://{mesh.mesh.addresses.redis}") as redis:

        def told() -> bool:
            redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / 0.8))
            return "TinkermeshRedisMemoryHigh" in server.firing()

        try:
            until(told, FAULT_SECONDS)
        finally:
            redis.config_set("maxmemory", 0)
    silent(server, "TinkermeshRedisMemoryHigh")


def test_a_store_that_is_nearly_full_is_told(mesh: MeshProcesses, server: Prometheus, disk: Path) -> None:
    if not (disk / "store").is_mount():
        pytest.skip("mounting a tmpfs is not permitted here")
    silent(server, "TinkermeshStoreFull")
    with full(disk / "store"):
        seen(server, "TinkermeshStoreFull")
    silent(server, "TinkermeshStoreFull")
