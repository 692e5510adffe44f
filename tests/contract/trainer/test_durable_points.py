"""The mesh's own slot checkpoints: written as weights are, where no client's path leads (GAP-02)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import InvalidInput
from services.common.tinker_path import parse_tinker_path
from tests.contract.trainer.harness import MODEL, Client, Rig, datum, local_trainer, train


def durable(client: Client, slot: int, name: str) -> pb.Unit:
    unit = client.units.save(slot, name, created=7)
    unit.save.meta.kind, unit.save.directory = "durable", f"durable/{MODEL}/{name}"
    return unit


async def test_a_durable_point_restores_a_slot_bitwise_in_another_life_GAP_02(tmp_path: Path) -> None:
    async with local_trainer(tmp_path) as (trainer, client):
        await client.done(client.units.init(0))
        await train(client, 0, 3)
        version = await client.published(durable(client, 0, "3"))
        kept = trainer.digests()[0]
        await train(client, 0, 1, seed=50)
        after = trainer.digests()[0]
    assert json.loads((tmp_path / "store" / version / "meta.json").read_text())["optimizer_step"] == 3
    async with local_trainer(tmp_path, port_file=str(tmp_path / "second-port")) as (trainer, client):
        await client.done(client.units.load(2, version))
        assert trainer.digests()[2] == kept
        await train(client, 2, 1, seed=50)
        assert trainer.digests()[2] == after


async def test_the_open_window_is_no_part_of_a_durable_point_CKPT_19(rig: Rig) -> None:
    trainer, client = rig
    await client.done(client.units.init(0))
    await train(client, 0, 1)
    closed = trainer.digests()[0]
    await client.done(client.units.train([(0, [datum(seed=9)])]))
    version = await client.published(durable(client, 0, "1"))
    await client.done(client.units.load(1, version))
    assert trainer.digests()[1] == closed


async def test_a_durable_point_is_no_checkpoint_of_a_client_GAP_02(rig: Rig) -> None:
    trainer, client = rig
    await client.done(client.units.init(0))
    await client.published(durable(client, 0, "1"))
    assert not (trainer.store / "runs").exists()
    with pytest.raises(InvalidInput, match="kind"):
        parse_tinker_path(f"tinker://{MODEL}/durable/1")


@pytest.mark.parametrize(
    ("kind", "directory"), [("durable", f"runs/{MODEL}/weights/a"), ("weights", f"durable/{MODEL}/a")]
)
async def test_kind_and_place_must_fit_each_other(rig: Rig, kind: str, directory: str) -> None:
    _, client = rig
    await client.done(client.units.init(0))
    unit = client.units.save(0, "a")
    unit.save.meta.kind, unit.save.directory = kind, directory
    assert "does not belong into" in await client.refused(unit)


async def test_a_clients_checkpoint_moved_among_the_durable_ones_is_not_loaded(rig: Rig) -> None:
    trainer, client = rig
    await client.done(client.units.init(0))
    version = trainer.store / await client.published(client.units.save(0, "a"))
    (trainer.store / "durable" / MODEL).mkdir(parents=True)
    version.rename(trainer.store / "durable" / MODEL / "moved")
    assert "kind is 'weights'" in await client.refused(client.units.load(1, f"durable/{MODEL}/moved"))


async def test_a_snapshot_cannot_be_a_durable_point(rig: Rig) -> None:
    _, client = rig
    await client.done(client.units.init(0))
    unit = client.units.snapshot(0, "a")
    unit.snapshot.meta.kind = "durable"
    assert "meta.kind" in await client.refused(unit)


async def test_the_log_says_how_large_it_is_and_how_long_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What benchmarks/durable_points.py and benchmarks/paging.py read."""
    caplog.set_level(logging.INFO)
    async with local_trainer(tmp_path) as (trainer, client):
        await client.done(client.units.init(0))
        version = await client.published(durable(client, 0, "1"))
        files = (trainer.store / version).iterdir()
    (told,) = [record.fields for record in caplog.records if "published" in getattr(record, "fields", {})]
    assert told["published"] == f"durable/{MODEL}/1"
    assert told["bytes"] == sum(file.stat().st_size for file in files)
    assert 0 < told["seconds"] < 60
