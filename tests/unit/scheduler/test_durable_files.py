"""Durable points are deleted beside writers and other leaders: what has gone meanwhile ends no term."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from services.scheduler.dispatch import durable_store, durable_sweeper
from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.dispatch.durable_sweeper import DurableSweeper

MODEL = "durable/pool/model"


async def test_a_residue_that_is_renamed_while_it_is_looked_at_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path.resolve() / MODEL / "_version_1_x"
    left.mkdir(parents=True)
    monkeypatch.setattr(durable_store, "_folders", lambda folder: iter([folder / "_tmp_1_x", left]))
    assert await DurableFiles(tmp_path).versions("pool", ["model"], -60.0) == {"model": [f"{MODEL}/_version_1_x"]}


async def test_a_version_that_another_leader_deletes_at_once_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / MODEL / "_version_1_x"
    version.mkdir(parents=True)
    real = shutil.rmtree

    def both(path: Path, **options: bool) -> None:
        real(path, **options)
        real(path.parent)

    monkeypatch.setattr(durable_store.shutil, "rmtree", both)
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)  # as it was a moment ago
    await DurableFiles(tmp_path).delete(f"{MODEL}/_version_1_x")
    assert not version.exists()


class Book:
    """The second of two models has a capture under way, of unit u2."""

    async def running(self, pool: str) -> dict[str, str]:
        return {MODELS[1]: "u2"}


class Rows:
    """Models are open; each has a base."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def bases(self, pool: str, model_ids: Sequence[str]) -> list[str]:
        self.asked.append(list(model_ids))
        return [f"durable/pool/{model_id}/_version_base_x" for model_id in model_ids]


MODELS = [f"00000000-0000-4000-8000-00000000000{number}:train:0" for number in (1, 2)]


async def test_only_what_is_nobodys_base_and_no_running_capture_is_an_orphan(tmp_path: Path) -> None:
    for model_id in MODELS:
        for name in ("_version_base_x", "_version_u1_x", "_tmp_u2_x"):
            (tmp_path / "durable" / "pool" / model_id / name).mkdir(parents=True)
    sweeper = DurableSweeper(cast("Any", Book()), cast("Any", Rows()), DurableFiles(tmp_path), orphan_seconds=-60.0)
    assert await sweeper.drop_orphans("pool") == 3
    first, second = (tmp_path / "durable" / "pool" / model_id for model_id in MODELS)
    assert [entry.name for entry in first.iterdir()] == ["_version_base_x"]
    assert sorted(entry.name for entry in second.iterdir()) == ["_tmp_u2_x", "_version_base_x"]


async def test_a_sweep_asks_once_for_a_bounded_part_of_the_models_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_sweeper, "MODELS_PER_SWEEP", 3)
    models = [f"00000000-0000-4000-8000-{number:012}:train:0" for number in range(7)]
    for model_id in models:
        for name in ("_version_base_x", "_version_u1_x"):
            (tmp_path / "durable" / "pool" / model_id / name).mkdir(parents=True)
    rows = Rows()
    sweeper = DurableSweeper(cast("Any", Book()), cast("Any", rows), DurableFiles(tmp_path), orphan_seconds=-60.0)
    assert [await sweeper.drop_orphans("pool") for _ in range(4)] == [3, 3, 1, 0]
    assert rows.asked == [models[:3], models[3:6], models[6:], models[:3]]


async def test_what_is_young_costs_no_read(tmp_path: Path) -> None:
    (tmp_path / "durable" / "pool" / MODELS[0] / "_version_u1_x").mkdir(parents=True)
    rows = Rows()
    sweeper = DurableSweeper(cast("Any", Book()), cast("Any", rows), DurableFiles(tmp_path), orphan_seconds=60.0)
    assert await sweeper.drop_orphans("pool") == 0
    assert rows.asked == []


async def test_what_is_captured_while_files_are_listed_is_no_orphan(tmp_path: Path) -> None:
    """Redis is asked behind the listing, so whatever was listed is known there."""
    files, book = DurableFiles(tmp_path), Book()
    folder = tmp_path / "durable" / "pool" / MODELS[1]
    (folder / "_tmp_u2_x").mkdir(parents=True)
    began: list[str] = []

    async def running(pool: str) -> dict[str, str]:
        began.append("read")
        return {MODELS[1]: "u2"}

    async def versions(*arguments: Any) -> dict[str, list[str]]:
        assert began == []
        return await DurableFiles.versions(files, *arguments)

    book.running, files.versions = running, versions  # type: ignore[method-assign]
    sweeper = DurableSweeper(cast("Any", book), cast("Any", Rows()), files, orphan_seconds=-60.0)
    assert await sweeper.drop_orphans("pool") == 0
    assert began == ["read"]


async def test_a_folder_whose_writer_died_before_its_first_version_goes(tmp_path: Path) -> None:
    """And no other: neither one that holds something nor one that was made a moment ago."""
    empty, filled = (tmp_path / "durable" / "pool" / model_id for model_id in MODELS)
    empty.mkdir(parents=True)
    (filled / "_version_base_x").mkdir(parents=True)
    young = DurableSweeper(cast("Any", Book()), cast("Any", Rows()), DurableFiles(tmp_path), orphan_seconds=60.0)
    await young.drop_orphans("pool")
    assert empty.is_dir()
    old = DurableSweeper(cast("Any", Book()), cast("Any", Rows()), DurableFiles(tmp_path), orphan_seconds=-60.0)
    assert await old.drop_orphans("pool") == 0
    assert not empty.exists()
    assert (filled / "_version_base_x").is_dir()
