"""FAIL-15, GAP-05: a store without space fails the save that met it, on all ranks alike, and nothing else."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER

from tests.contract.trainer.harness import MODEL, Client, connected, datum, stub_settings
from tests.contract.trainer.test_durable_points import durable
from tests.contract.trainer.trainer_process import TrainerProcess
from tests.doubles.small_disk import full, small_disk
from tools.make_tiny_qwen3 import build

TOPOLOGIES = [{}, {"tp": 2}, {"dp": 2}]


@asynccontextmanager
async def trainer(root: Path, disk: Path, **changes: object):
    started = TrainerProcess(stub_settings(root, store_root=str(disk), threads=1, **changes))
    try:
        async with connected(await started.address()) as client:
            yield started, client
    except BaseException:
        started.kill()
        print(started.log())
        raise
    finally:
        started.kill()


def lives(started: TrainerProcess) -> set[int]:
    """Process ids of all ranks."""
    return {started.process.pid} | {child.pid for child in psutil.Process(started.process.pid).children()}


def saves(client: Client, attempt: str) -> list[pb.Unit]:
    """A checkpoint, a snapshot, an export and a durable point."""
    export = client.units.snapshot(0, f"e{attempt}")
    export.snapshot.meta.kind, export.snapshot.directory = "external_weights", f"runs/{MODEL}/external_weights/e"
    named = [client.units.save(0, "c", overwrite=True), client.units.snapshot(0, f"s{attempt}")]
    return [*named, export, durable(client, 0, f"{attempt}")]


def files(disk: Path) -> list[str]:
    return sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file() or path.is_symlink())


async def scores(client: Client) -> bytes:
    return (await client.execute(client.units.train([(0, [datum(seed=5)])], backward=False)))[1]


async def a_full_disk_costs_one_save(started: TrainerProcess, client: Client, disk: Path) -> None:
    pids = lives(started)
    await client.stub.Takeover(pb.TakeoverRequest(term=1, incarnation=client.units.incarnation, token=1), timeout=20)
    await client.done(client.units.init(0))
    await client.done(client.units.train([(0, [datum(seed=1)])]))
    await client.done(client.units.optim(0))
    await client.published(client.units.save(0, "c"))
    before, trained = files(disk), await scores(client)
    with full(disk):
        for unit in saves(client, "1"):
            failure = (await client.artifact(unit)).failure
            assert failure.category == FAILURE_CATEGORY_SERVER
            assert "No space left on device" in failure.message
            assert "free space in the store, save again" in failure.message
        await client.done(client.units.train([(0, [datum(seed=2)])]))
    assert files(disk) == before
    assert await scores(client) == trained
    for unit in saves(client, "2"):
        await client.published(unit)
    await client.done(client.units.optim(0))
    assert await scores(client) != trained
    assert lives(started) == pids


@pytest.mark.parametrize("sizes", TOPOLOGIES, ids=["one", "tp2", "dp2"])
async def test_a_full_disk_fails_each_save_alone_and_the_next_one_works_FAIL_15_GAP_05_CKPT_08(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with trainer(tmp_path, disk, **sizes) as (started, client):
            await a_full_disk_costs_one_save(started, client, disk)


@pytest.mark.engine
@pytest.mark.timeout(600)
async def test_the_real_engine_on_two_ranks_survives_a_full_disk_FAIL_15_GAP_05(tmp_path: Path) -> None:
    model = build(tmp_path / "tiny-qwen3")
    real = {"model_path": str(model), "base_model": "tinkermesh/tiny-qwen3", "pool": "tiny", "tp": 2}
    with small_disk(tmp_path / "disk", 16) as disk:
        engine = "services.trainer.megatron:build_engine"
        async with trainer(tmp_path, disk, engine=engine, **real) as (started, client):
            await a_full_disk_costs_one_save(started, client, disk)


async def test_a_store_that_takes_no_mark_delays_a_takeover_and_its_remedy_is_named_FAIL_15(tmp_path: Path) -> None:
    """The store's fence is raised before anything is published; the process lives on."""
    with small_disk(tmp_path / "disk") as disk:
        async with trainer(tmp_path, disk) as (started, client):
            pids = lives(started)
            request = pb.TakeoverRequest(term=2, incarnation=client.units.incarnation, token=7)
            (disk / "fences").write_text("in the way")
            with pytest.raises(grpc.aio.AioRpcError, match="the store's fence cannot be raised"):
                await client.stub.Takeover(request, timeout=10)
            (disk / "fences").unlink()
            await client.stub.Takeover(request, timeout=10)
            assert lives(started) == pids
