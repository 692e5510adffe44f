"""Publication: readers see one whole version at any moment, whatever happens to the writer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common import publish as module
from services.common.errors import InvalidInput, StaleFence
from services.common.publish import Claim, check_free, collect_garbage, public_path, publish

REPOSITORY = Path(__file__).resolve().parents[3]
STEPS = ["temporary", "written", "renamed", "linked", "published"]
OVERWRITE = Claim(overwrite=True, term=1, same=lambda stored: False)
ONCE = Claim(overwrite=False, term=1, same=lambda stored: False)

CHILD = """
import os, sys
from pathlib import Path
from tests.unit.common.test_publish import OVERWRITE, fill
from services.common.publish import publish
stop = sys.argv[2]
publish(Path(sys.argv[1]), fill(2), OVERWRITE, reached=lambda step: os.kill(os.getpid(), 9) if step == stop else None)
"""


def fill(number: int, term: int = 1):
    def write(directory: Path) -> None:
        (directory / "shard").write_text(f"{number}" * 4096)
        (directory / "meta.json").write_text(json.dumps({"number": number, "term": term}))

    return write


def seen(public: Path) -> int:
    """The version's number. Raises when it is not whole."""
    directory = public.resolve(strict=True)
    number = json.loads((directory / "meta.json").read_text())["number"]
    assert (directory / "shard").read_text() == f"{number}" * 4096
    return int(number)


@contextlib.contextmanager
def renamed_once_listed(monkeypatch: pytest.MonkeyPatch, entry: Path) -> Iterator[list[Path]]:
    """Whoever lists the folder of `entry` gets a name that is gone before it looks; yields the names it had."""
    real, names = Path.iterdir, [entry]

    def iterdir(folder: Path) -> Iterator[Path]:
        listed = list(real(folder))
        if names[-1] in listed:
            names.append(names[-1].rename(entry.with_name(f"{entry.name[:-32]}{len(names):032x}")))
        return iter(listed)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", iterdir)
        yield names
    assert len(names) > 1, "nobody listed it"


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "m" / "weights" / "a"


def test_reader_never_sees_a_mixture_or_nothing_during_200_overwrites_CKPT_01(public: Path):
    publish(public, fill(0), OVERWRITE)
    stop, numbers, wrong = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            try:
                numbers.add(seen(public))
            except (AssertionError, OSError, ValueError) as error:
                wrong.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 201):
        publish(public, fill(number), OVERWRITE)
        collect_garbage(public.parent, grace_seconds=30)
    stop.set()
    reader.join(20)
    assert wrong == []
    assert len(numbers) > 1
    assert seen(public) == 200


@pytest.mark.parametrize(
    ("step", "existing"), [(step, True) for step in STEPS] + [(step, False) for step in STEPS if step != "linked"]
)
def test_kill_at_every_step_leaves_the_old_or_the_new_version_and_the_next_save_succeeds_CKPT_01_CKPT_04(
    public: Path, step: str, existing: bool
):
    if existing:
        publish(public, fill(1), OVERWRITE)
    else:
        public.parent.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'protos'}"}
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(public), step], env=environment, cwd=REPOSITORY, timeout=60, check=False
    )
    assert killed.returncode == -9
    if step == "published":
        assert seen(public) == 2
    elif existing:
        assert seen(public) == 1
    else:
        assert not os.path.lexists(public)
    publish(public, fill(3), OVERWRITE)
    assert seen(public) == 3
    assert [e.name for e in public.parent.iterdir() if e.name.startswith("_tmp_")] == []
    collect_garbage(public.parent, grace_seconds=0, now=time.time() + 1)
    assert len(list(public.parent.iterdir())) == 2


def test_link_is_relative_and_survives_a_move_CKPT_02(public: Path, tmp_path: Path):
    publish(public, fill(1), OVERWRITE)
    publish(public, fill(2), OVERWRITE)
    assert not public.readlink().is_absolute()
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert seen(tmp_path / "elsewhere" / "m" / "weights" / "a") == 2


def test_residue_of_an_earlier_attempt_is_cleaned_and_that_of_other_names_stays_CKPT_04(public: Path):
    parent = public.parent
    (parent / f"_tmp_a_{'0' * 32}").mkdir(parents=True)
    (parent / f"_tmp_a_{'1' * 32}").symlink_to("nowhere")
    (parent / f"_tmp_a_b_{'2' * 32}").mkdir()
    publish(public, fill(1), ONCE)
    assert sorted(e.name for e in parent.iterdir() if e.name.startswith("_tmp_")) == [f"_tmp_a_b_{'2' * 32}"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_version_left_without_its_name_goes_when_the_same_is_published_again_CKPT_04(public: Path, overwrite: bool):
    again = Claim(overwrite, 1, same=lambda stored: stored.get("number") == 2)
    if overwrite:
        publish(public, fill(1), OVERWRITE)
        old = public.resolve()
    leftover = public.parent / f"_version_a_{'0' * 32}"
    leftover.mkdir(parents=True)
    fill(2)(leftover)
    publish(public, fill(2), again)
    assert seen(public) == 2
    assert not leftover.exists()
    if overwrite:
        assert old.exists()  # superseded a moment ago: somebody may still read it


def test_a_superseded_version_of_the_same_publication_stays_for_its_readers_CKPT_14(public: Path):
    same = Claim(overwrite=True, term=1, same=lambda stored: stored.get("number") in (2, 3))
    publish(public, fill(2), same)
    first = public.resolve()
    publish(public, fill(3), same)
    publish(public, fill(2), same)
    assert first.exists()
    assert seen(public) == 2


def test_writer_whose_residue_was_cleaned_cannot_publish_it_CKPT_20(public: Path):
    """A zombie still writes while the next saver of the name cleans up behind it."""

    def next_saver(step: str) -> None:
        if step == "written":
            publish(public, fill(2), OVERWRITE)

    with pytest.raises(OSError):
        publish(public, fill(1), OVERWRITE, reached=next_saver)
    assert seen(public) == 2
    assert len(list(public.parent.iterdir())) == 2


def test_residue_leaves_its_name_before_its_first_file_goes_CKPT_20(public: Path, monkeypatch):
    """Else a zombie could rename a half-emptied directory into a version."""
    residue = public.parent / f"_tmp_a_{'0' * 32}"
    residue.mkdir(parents=True)
    removed = []
    monkeypatch.setattr(module.shutil, "rmtree", lambda path, ignore_errors: removed.append((path, residue.exists())))
    publish(public, fill(1), ONCE)
    assert [still_there for _, still_there in removed] == [False]


def test_failed_fill_leaves_the_public_name_as_it_was(public: Path):
    publish(public, fill(1), OVERWRITE)

    def fails(directory: Path) -> None:
        (directory / "shard").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publish(public, fails, OVERWRITE)
    assert seen(public) == 1
    assert len(list(public.parent.iterdir())) == 2


@pytest.mark.parametrize("failing", ["renamed", "linked"])
def test_failure_after_the_rename_leaves_no_orphan(public: Path, failing: str):
    publish(public, fill(1), OVERWRITE)

    def fails(step: str) -> None:
        if step == failing:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        publish(public, fill(2), OVERWRITE, reached=fails)
    assert seen(public) == 1
    versions = [e for e in public.parent.iterdir() if e.name.startswith("_version_")]
    assert len(versions) == 1


def test_name_taken_during_the_write_is_refused(public: Path):
    def rival(step: str) -> None:
        if step == "renamed":
            other = public.parent / "_version_a_rival"
            other.mkdir()
            fill(7)(other)
            public.symlink_to(other.name)

    with pytest.raises(InvalidInput, match="exists already"):
        publish(public, fill(1), ONCE, reached=rival)
    assert seen(public) == 7


def test_refusals(public: Path, tmp_path: Path):
    publish(public, fill(1, term=5), Claim(overwrite=False, term=5, same=lambda stored: False))
    with pytest.raises(InvalidInput, match="exists already"):
        check_free(public, ONCE)
    with pytest.raises(StaleFence, match="newer term"):
        check_free(public, OVERWRITE)
    check_free(public, Claim(overwrite=True, term=5, same=lambda stored: False))
    plain = public.parent / "plain"
    plain.mkdir()
    with pytest.raises(InvalidInput, match="plain directory"):
        check_free(plain, OVERWRITE)


@pytest.mark.parametrize("directory", ["../x/a", "runs/../../x/a", "/etc/a", "a", "runs/m/..", "runs/m/_tmp_a"])
def test_public_paths_stay_inside_the_store(tmp_path: Path, directory: str):
    with pytest.raises(InvalidInput):
        public_path(tmp_path / "store", directory)


def test_link_out_of_the_store_is_not_followed(tmp_path: Path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "runs").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="leaves the store"):
        public_path(store, "runs/a")


def test_superseded_versions_go_after_their_grace_and_a_recent_one_stays_CKPT_14_GAP_12(public: Path):
    first = publish(public, fill(0), OVERWRITE)
    os.utime(first, (1, 1))
    for number in range(1, 51):
        publish(public, fill(number), OVERWRITE)
    assert collect_garbage(public.parent, grace_seconds=600) == []
    assert first.is_dir(), "its grace period began when it was superseded, not when it was written"
    assert len(collect_garbage(public.parent, grace_seconds=600, now=time.time() + 601)) == 50
    assert seen(public) == 50
    assert len(list(public.parent.iterdir())) == 2


def test_garbage_collection_never_follows_links_and_keeps_what_is_not_its_own_CKPT_14(public: Path, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    publish(public, fill(1), OVERWRITE)
    (public.parent / f"_tmp_x_{'0' * 32}").symlink_to(outside)
    (public.parent / "legacy").mkdir()
    collect_garbage(public.parent, grace_seconds=0, now=time.time() + 10)
    assert (outside / "precious").exists()
    assert (public.parent / "legacy").is_dir()
    assert seen(public) == 1


def test_what_another_attempt_renames_while_garbage_is_looked_for_is_no_error_IDEM_01(
    public: Path, monkeypatch: pytest.MonkeyPatch
):
    """A twin publishes between the listing and the look at what was listed: its name is gone then."""
    publish(public, fill(1), OVERWRITE)
    old, half = (public.parent / f"_tmp_a_{digit * 32}" for digit in "12")
    for entry in (old, half):
        entry.mkdir()
        os.utime(entry, (1, 1))
    with renamed_once_listed(monkeypatch, half) as renamed:
        assert collect_garbage(public.parent, grace_seconds=600) == [old.name]
    assert renamed[-1].is_dir()
    assert seen(public) == 1


def test_snapshot_versions_are_kept_even_without_a_name_SNAP_10(tmp_path: Path):
    public = tmp_path / "runs" / "m" / "sampler_weights" / "1"
    version = publish(public, fill(1), ONCE)
    public.unlink()
    assert collect_garbage(public.parent, grace_seconds=0, now=time.time() + 10) == []
    assert version.is_dir()


def test_attempts_at_once_to_publish_the_same_all_answer_the_first_version_IDEM_01(public: Path):
    """None sweeps another's half-written files, as a retry does while a slow first attempt still copies."""
    count = 6
    together = threading.Barrier(count)
    claim = Claim(overwrite=False, term=0, same=lambda stored: stored.get("term") == 7, alone=False)
    answers: list[object] = []

    def write(number: int):
        def half(directory: Path) -> None:
            together.wait(20)
            fill(number, term=7)(directory)

        return half

    def attempt(number: int) -> None:
        try:
            answers.append(publish(public, write(number), claim))
        except (InvalidInput, OSError) as error:
            answers.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [public.resolve()] * count
    seen(public)
    assert sorted(entry.name for entry in public.parent.iterdir()) == sorted(["a", public.resolve().name])


def test_a_name_that_another_publication_took_meanwhile_is_refused_CKPT_05(public: Path):
    shared = Claim(overwrite=False, term=1, same=lambda stored: False, alone=False)

    def write(directory: Path) -> None:
        publish(public, fill(2), shared)
        fill(1)(directory)

    with pytest.raises(InvalidInput, match="exists already"):
        publish(public, write, shared)
    assert seen(public) == 2
