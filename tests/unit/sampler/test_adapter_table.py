from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.common.errors import Busy, InUse, InvalidInput, MissingResource, Unavailable
from services.sampler.adapter_files import AdapterFiles
from services.sampler.adapter_table import AdapterTable
from services.sampler.residents import State
from tests.unit.sampler.doubles import LINEAR, FakeEngine, write_adapter

NAMES = [f"m{index}@1" for index in range(12)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in NAMES:
        write_adapter(tmp_path / name)
    return tmp_path


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


def table_of(engine: FakeEngine, store: Path, places: int = 2, **options: float) -> AdapterTable:
    return AdapterTable(engine, AdapterFiles(LINEAR, 32), store, places, **options)


async def use(table: AdapterTable, name: str, hold: asyncio.Event | None = None) -> int:
    async with table.use(name, name) as adapter:
        if hold is not None:
            await hold.wait()
        return adapter.engine_id


async def settle() -> None:
    """Let loads, which check files in a thread, come to rest."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def test_a_hundred_first_uses_share_one_load_SAMP_01(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    ids = await asyncio.gather(*(use(table, "m0@1") for _ in range(100)))
    assert set(ids) == {2}
    assert engine.events == ["add m0@1"]
    assert [loads for _, loads in table.residents()] == [1]


async def test_engine_ids_are_never_reused_even_after_a_failed_load(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store, places=1)
    engine.refused = {"m1@1"}
    first = await use(table, "m0@1")
    with pytest.raises(InvalidInput, match="refused"):
        await use(table, "m1@1")
    again = await use(table, "m0@1")
    other = await use(table, "m2@1")
    assert [first, again, other] == [2, 4, 5]
    assert engine.loaded == [other]


async def test_a_failed_load_reaches_every_waiter_and_leaves_no_trace(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    engine.refused = {"m0@1"}
    results = await asyncio.gather(*(use(table, "m0@1") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, InvalidInput) for result in results)
    assert engine.events == ["add m0@1"]
    assert table.residents() == []
    engine.refused = set()
    assert await use(table, "m0@1") > 2


async def test_the_least_recently_used_idle_adapter_is_evicted(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    for name in ("m0@1", "m1@1", "m0@1", "m2@1"):
        await use(table, name)
    assert [resident.adapter.name for resident, _ in table.residents()] == ["m0@1", "m2@1"]
    assert engine.most_loaded <= 2


async def test_an_adapter_in_use_is_never_evicted_SAMP_05_SNAP_10(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    hold = asyncio.Event()
    held = asyncio.create_task(use(table, "m0@1", hold))
    await settle()
    for name in NAMES[1:6]:
        await use(table, name)
    assert "remove m0@1" not in engine.events
    hold.set()
    await held


async def test_a_load_without_a_place_is_refused_at_once(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store, places=1)
    hold = asyncio.Event()
    held = asyncio.create_task(use(table, "m0@1", hold))
    await settle()
    with pytest.raises(Busy, match="all 1 places"):
        await table.load("m1@1", "m1@1")
    hold.set()
    await held
    assert (await table.load("m1@1", "m1@1"))[0] is False
    assert (await table.load("m1@1", "m1@1"))[0] is True


async def test_a_sample_waits_for_a_place_and_names_the_stage_when_none_comes_SAMP_06(
    engine: FakeEngine, store: Path
) -> None:
    table = table_of(engine, store, places=1, place_timeout_seconds=0.05)
    hold = asyncio.Event()
    held = asyncio.create_task(use(table, "m0@1", hold))
    await settle()
    with pytest.raises(Busy, match="stage waiting for a place"):
        await use(table, "m1@1")
    assert [resident.state for resident, _ in table.residents()] == [State.READY]  # takes requests again
    hold.set()
    await held
    await use(table, "m1@1")


async def test_a_load_that_hangs_ends_with_the_stage_SAMP_06(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store, load_timeout_seconds=0.05)
    engine.load_gate.clear()
    with pytest.raises(Unavailable, match="stage loading"):
        await use(table, "m0@1")
    engine.load_gate.set()
    await settle()
    assert await use(table, "m0@1") == 2


async def test_waiting_adapters_get_their_turn_although_the_others_never_rest(engine: FakeEngine, store: Path) -> None:
    """Two places kept busy by overlapping requests; a third adapter must not starve."""
    table = table_of(engine, store)
    stop = asyncio.Event()

    async def stream(name: str) -> None:
        while not stop.is_set():
            async with table.use(name, name):
                await asyncio.sleep(0.005)

    streams = [asyncio.create_task(stream(name)) for name in ("m0@1", "m0@1", "m0@1", "m1@1", "m1@1", "m1@1")]
    await settle()
    async with asyncio.timeout(5):
        await use(table, "m2@1")
        await use(table, "m3@1")
    stop.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*streams)
    assert engine.most_loaded <= 2


async def test_many_adapters_on_few_places_are_all_served_and_never_exceed_them(
    engine: FakeEngine, store: Path
) -> None:
    table = table_of(engine, store, places=3)

    async def one(index: int) -> None:
        async with table.use(NAMES[index % 12], NAMES[index % 12]) as adapter:
            await asyncio.sleep(0.001)
            assert adapter.engine_id in engine.loaded

    async with asyncio.timeout(20):
        await asyncio.gather(*(one(index * 7) for index in range(120)))
    assert engine.most_loaded <= 3
    assert all(resident.in_use == 0 for resident, _ in table.residents())


async def test_a_cancelled_wait_gives_its_turn_back(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store, places=1)
    hold = asyncio.Event()
    held = asyncio.create_task(use(table, "m0@1", hold))
    await settle()
    seeking = asyncio.create_task(use(table, "m1@1"))
    await settle()
    assert table.residents()[0][0].state is State.DRAINING
    seeking.cancel()
    await asyncio.gather(seeking, return_exceptions=True)
    assert table.residents()[0][0].state is State.READY
    assert await use(table, "m0@1") == 2
    hold.set()
    await held


async def test_unload_refuses_an_adapter_in_use_and_then_removes_it(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    hold = asyncio.Event()
    held = asyncio.create_task(use(table, "m0@1", hold))
    await settle()
    with pytest.raises(InUse, match="1 queued or running"):
        await table.unload("m0@1")
    hold.set()
    await held
    assert await table.unload("m0@1") is True
    assert await table.unload("m0@1") is False
    assert engine.loaded == []


async def test_two_versions_have_their_own_place_and_id_SNAP_04(engine: FakeEngine, store: Path) -> None:
    write_adapter(store / "m0@2")
    table = table_of(engine, store)
    assert await use(table, "m0@1") != await use(table, "m0@2")


async def test_a_name_stays_bound_to_its_directory(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    await table.load("m0@1", "m0@1")
    with pytest.raises(InvalidInput, match="bound to another directory"):
        await table.load("m0@1", "m1@1")


@pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd", "m0@1/../..", ""])
async def test_a_path_outside_the_store_is_refused_SEC_09(engine: FakeEngine, store: Path, path: str) -> None:
    with pytest.raises(InvalidInput, match="leaves the store"):
        await table_of(engine, store).load("x@1", path)
    assert engine.events == []


async def test_a_missing_directory_or_name_is_said(engine: FakeEngine, store: Path) -> None:
    table = table_of(engine, store)
    with pytest.raises(MissingResource, match="deleted or expired; save it again with save_weights_for_sampler"):
        await table.load("x@1", "nowhere")
    with pytest.raises(InvalidInput, match="name is empty"):
        await table.load("", "m0@1")
    (store / "m0@1" / "adapter_model.safetensors").unlink()
    with pytest.raises(MissingResource, match="adapter_model"):
        await table.load("m0@1", "m0@1")
    assert engine.events == []
