"""GAP-03, CKPT-20: after a takeover by another incarnation, nothing the old one does reaches the store."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.common.errors import StaleFence
from services.common.publication_fence import PublicationFence
from services.common.publish import Claim, publish

REPOSITORY = Path(__file__).resolve().parents[3]
OVERWRITE = Claim(overwrite=True, term=1, same=lambda stored: False)
ONCE = Claim(overwrite=False, term=1, same=lambda stored: False)
STEPS = ["temporary", "written", "renamed", "linked"]


def fill(number: int) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "meta.json").write_text(json.dumps({"number": number, "term": 1}))

    return write


def number(public: Path) -> int:
    return int(json.loads((public / "meta.json").read_text())["number"])


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "m" / "weights" / "a"


def fence(root: Path, incarnation: str) -> PublicationFence:
    return PublicationFence(root, "pool", incarnation)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_without_any_takeover_publishing_is_as_ever(tmp_path: Path, public: Path) -> None:
    publish(public, fill(1), ONCE, stage=fence(tmp_path, "one").stage)
    assert number(public) == 1


@pytest.mark.parametrize("claim", [OVERWRITE, ONCE], ids=["overwrite", "once"])
def test_the_one_that_took_over_publishes_and_leaves_no_debris(tmp_path: Path, public: Path, claim: Claim) -> None:
    mine = fence(tmp_path, "one")
    mine.raise_to(5)
    publish(public, fill(1), claim, stage=mine.stage)
    assert number(public) == 1
    assert public.readlink() == Path(public.readlink().name)
    assert {entry.name for entry in public.parent.iterdir()} == {"a", public.readlink().name}
    stage = mine.stage()
    assert stage is not None
    assert list(stage.iterdir()) == []


@pytest.mark.parametrize("claim", [OVERWRITE, ONCE], ids=["overwrite", "once"])
@pytest.mark.parametrize("step", STEPS)
def test_a_takeover_at_any_step_of_a_publication_leaves_the_store_as_it_was_GAP_03(
    tmp_path: Path, public: Path, step: str, claim: Claim
) -> None:
    old, new = fence(tmp_path, "old"), fence(tmp_path, "new")
    old.raise_to(5)
    if claim is OVERWRITE:
        publish(public, fill(0), claim, stage=old.stage)
    elif step == "linked":
        pytest.skip("a new name has no such step")
    before = tree(tmp_path / "runs")

    def overtaken(reached: str) -> None:
        if reached == step:
            new.raise_to(6)

    with pytest.raises(StaleFence, match="superseded in pool pool by new"):
        publish(public, fill(1), claim, stage=old.stage, reached=overtaken)
    assert tree(tmp_path / "runs") - {"m", "m/weights"} == before - {"m", "m/weights"}
    publish(public, fill(2), claim, stage=new.stage)
    assert number(public) == 2


def test_a_late_takeover_of_the_old_one_changes_nothing_GAP_03(tmp_path: Path, public: Path) -> None:
    old, new = fence(tmp_path, "old"), fence(tmp_path, "new")
    old.raise_to(5)
    new.raise_to(7)
    with pytest.raises(StaleFence, match="superseded"):
        old.raise_to(6)
    assert old.superseded
    assert not new.superseded
    with pytest.raises(StaleFence):
        publish(public, fill(1), ONCE, stage=old.stage)
    publish(public, fill(2), ONCE, stage=new.stage)


def test_another_leader_of_the_same_trainer_does_not_end_what_it_writes(tmp_path: Path, public: Path) -> None:
    mine = fence(tmp_path, "one")
    mine.raise_to(5)
    publish(public, fill(1), ONCE, stage=mine.stage, reached=lambda step: mine.raise_to(6))
    assert number(public) == 1
    with pytest.raises(StaleFence, match="older than 6"):
        mine.raise_to(5)
    assert not mine.superseded


def test_a_pool_can_go_back_to_a_trainer_it_left(tmp_path: Path, public: Path) -> None:
    one, two = fence(tmp_path, "one"), fence(tmp_path, "two")
    for token, taken in ((1, one), (2, two), (3, one)):
        taken.raise_to(token)
    publish(public, fill(1), ONCE, stage=one.stage)
    with pytest.raises(StaleFence):
        two.stage()


def test_pools_do_not_meet(tmp_path: Path) -> None:
    one, other = PublicationFence(tmp_path, "a", "x"), PublicationFence(tmp_path, "b", "y")
    one.raise_to(5)
    other.raise_to(3)
    assert one.stage() != other.stage()


def test_of_takeovers_at_once_the_highest_alone_publishes_GAP_03(tmp_path: Path) -> None:
    for turn in range(20):
        fences = [PublicationFence(tmp_path, f"pool{turn}", f"life{n}") for n in range(6)]
        refused: list[int] = []

        def take(n: int, fences: list[PublicationFence] = fences, refused: list[int] = refused) -> None:
            try:
                fences[n].raise_to(n + 1)
            except StaleFence:
                refused.append(n)

        threads = [threading.Thread(target=take, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 5 not in refused
        able = [n for n in range(6) if is_able(fences[n])]
        assert able == [5]


def test_a_stage_that_a_late_takeover_swept_away_is_made_anew(tmp_path: Path, public: Path) -> None:
    """An older takeover, stopped between its look and its sweep, cannot stop the newer one's publications."""
    mine = fence(tmp_path, "one")
    mine.raise_to(5)
    stage = mine.stage()
    assert stage is not None

    def swept(step: str) -> None:
        if step == "written" and stage.is_dir():
            shutil.rmtree(stage)

    publish(public, fill(1), ONCE, stage=mine.stage, reached=swept)
    assert number(public) == 1


def is_able(mine: PublicationFence) -> bool:
    try:
        return mine.stage() is not None
    except StaleFence:
        return False


WRITER = """
import itertools, sys
from pathlib import Path
from services.common.errors import StaleFence
from tests.unit.common.test_publication_fence import OVERWRITE, fence, fill
from services.common.publish import publish
root, public = Path(sys.argv[1]), Path(sys.argv[2])
mine = fence(root, "old")
mine.raise_to(5)
print("ready", flush=True)
try:
    for count in itertools.count():
        publish(public, fill(count), OVERWRITE, stage=mine.stage)
except StaleFence as error:
    print("refused:", error, flush=True)
    sys.exit(3)
"""


def test_a_writer_stopped_at_random_and_continued_after_a_takeover_publishes_nothing_GAP_03(
    tmp_path: Path, public: Path
) -> None:
    """SIGSTOP in the middle of whatever it does; from the takeover on the public name is the new one's."""
    for turn in itertools.islice(itertools.count(), 8):
        root, name = tmp_path / str(turn), tmp_path / str(turn) / "runs" / "m" / "weights" / "a"
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(name)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'protos'}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.013 * (turn + 1))
        writer.send_signal(signal.SIGSTOP)
        new = fence(root, "new")
        new.raise_to(6)
        publish(name, fill(-1), OVERWRITE, stage=new.stage)
        writer.send_signal(signal.SIGCONT)
        assert writer.wait(20) == 3
        assert "superseded" in writer.stdout.read()
        assert number(name) == -1


def test_a_takeover_of_one_cell_fences_no_other_GAP_17(tmp_path: Path) -> None:
    first, second = PublicationFence(tmp_path, "pool", "a"), PublicationFence(tmp_path, "pool", "b", "1")
    first.raise_to(1)
    second.raise_to(2)
    assert (first.superseded, second.superseded) == ("", "")
    stages = [fence.stage() for fence in (first, second)]
    assert all(stage is not None and stage.is_dir() for stage in stages)
    assert len(set(stages)) == 2


def test_a_closed_fence_lets_nobody_through_until_the_next_takeover_GAP_17(tmp_path: Path) -> None:
    lost, nobody = PublicationFence(tmp_path, "pool", "a", "1"), PublicationFence(tmp_path, "pool", "nobody", "1")
    lost.raise_to(1)
    stage = lost.stage()
    nobody.close_at(2)
    assert stage is not None and not stage.exists()
    with pytest.raises(StaleFence, match="superseded"):
        lost.stage()
    with pytest.raises(StaleFence):
        lost.raise_to(1)
    new = PublicationFence(tmp_path, "pool", "c", "1")
    new.raise_to(3)
    assert new.stage() is not None
    with pytest.raises(StaleFence):
        nobody.close_at(2)
