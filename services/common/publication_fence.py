"""Who may publish what a cell of a pool saves: its trainer that was taken over last, nobody else.

    <root>/fences/<pool>/<token>-<incarnation>            the highest token names the trainer of the pool's first cell
    <root>/fences/<pool>/_stage_<incarnation>_<unique>/   where that trainer prepares what it publishes
    <root>/fences/<pool>@<cell>/                          the same of every other cell: none fences another

A publication takes effect by a rename or link *out of* its trainer's stage. Raising the fence moves
every other stage away and empties it, so from then on such a rename finds nothing to move: the
file system decides the race, and a process that was stopped anywhere in between is as harmless as
a dead one. There is no lock to be left held.

Of the file system it is assumed that rename, link and exclusive creation are atomic and that a
directory's listing shows what another machine completed before: a local disk, or a network mount
without cached lookups (NFS: ``lookupcache=none``). Stages and runs/ must be on one file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from services.common.cells import FIRST_CELL, cell_suffix
from services.common.errors import StaleFence

DIRECTORY = "fences"
_STAGE = "_stage_"
_TRASH = "_trash_"
_TOKEN_DIGITS = 20


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One takeover: `token` grows with every one of the cell."""

    token: int
    incarnation: str

    @property
    def name(self) -> str:
        return f"{self.token:0{_TOKEN_DIGITS}d}-{self.incarnation}"


class PublicationFence:
    """The fence of one cell as one life of a trainer sees it; safe to use from several threads."""

    def __init__(self, root: Path, pool: str, incarnation: str, cell: str = FIRST_CELL) -> None:
        self._directory = root / DIRECTORY / f"{pool}{cell_suffix(cell, '@')}"
        self._pool = pool
        self.incarnation = incarnation
        self._lock = threading.Lock()
        self._stage: Path | None = None

    def raise_to(self, token: int) -> None:
        """From here on only this incarnation publishes. Raises StaleFence when a newer takeover was here, OSError."""
        mine = Mark(token, self.incarnation)
        with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / mine.name).touch()
            self._check(mine)
            if self._stage is None or not self._stage.is_dir():
                self._stage = self._new_stage(mine)
            self._clear(mine)

    def close_at(self, token: int) -> None:
        """From here on nobody publishes until the next takeover. Raises as `raise_to`."""
        mine = Mark(token, self.incarnation)
        with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / mine.name).touch()
            self._check(mine)
            self._clear(mine)

    def stage(self) -> Path | None:
        """Where to prepare a publication; None: nobody ever took the pool over.

        Raises StaleFence when another incarnation did, after this one.
        """
        with self._lock:
            if self._stage is not None and self._stage.is_dir():
                return self._stage
            newest = self._newest()
            if newest is None:
                return None
            if newest.incarnation != self.incarnation:
                raise StaleFence(self._superseded_by(newest))
            # An older takeover that was stopped in its middle has cleared it away on its last breath.
            self._stage = self._new_stage(newest)
            return self._stage

    @property
    def superseded(self) -> str:
        """Why this incarnation has no business in the store any more; "" = it has, or nobody has."""
        newest = self._newest()
        return self._superseded_by(newest) if newest and newest.incarnation != self.incarnation else ""

    def _superseded_by(self, newest: Mark) -> str:
        return (
            f"incarnation {self.incarnation} was superseded in pool {self._pool} by {newest.incarnation} "
            f"(takeover {newest.token}); it publishes nothing any more"
        )

    def _new_stage(self, mine: Mark) -> Path:
        """A stage made while a newer takeover cleared the others may have been overlooked: look again."""
        stage = self._directory / f"{_STAGE}{self.incarnation}_{uuid.uuid4().hex}"
        stage.mkdir()
        try:
            self._check(mine)
        except StaleFence:
            with contextlib.suppress(FileNotFoundError):  # whoever took over may have been faster
                stage.rmdir()
            raise
        return stage

    def _check(self, mine: Mark) -> None:
        """Raises StaleFence, with this takeover's mark gone, when a newer one is there."""
        newest = self._newest()
        if newest is None or newest <= mine:
            return
        (self._directory / mine.name).unlink(missing_ok=True)
        if newest.incarnation != mine.incarnation:
            raise StaleFence(self._superseded_by(newest))
        raise StaleFence(f"takeover {mine.token} is older than {newest.token}, under which this trainer is driven now")

    def _newest(self) -> Mark | None:
        return max(self._marks(), default=None)

    def _marks(self) -> list[Mark]:
        found = []
        for entry in self._directory.iterdir() if self._directory.is_dir() else ():
            token, _, incarnation = entry.name.partition("-")
            if token.isdigit() and incarnation:
                found.append(Mark(int(token), incarnation))
        return found

    def _clear(self, mine: Mark) -> None:
        """Older marks go, and the stages of everybody else with all that lies in them.

        Raises StaleFence as soon as a newer takeover is seen: its stage is none of ours to clear.
        """
        for mark in self._marks():
            if mark < mine:
                (self._directory / mark.name).unlink(missing_ok=True)
        for entry in list(self._directory.iterdir()):
            if entry.name.startswith(_STAGE) and entry != self._stage:
                self._check(mine)
                _remove(entry)
            elif entry.name.startswith(_TRASH):
                shutil.rmtree(entry, ignore_errors=True)


def _remove(stage: Path) -> None:
    """A rename first, so that nothing new can come in by the old name. Raises OSError unless it is gone then."""
    trash = stage.with_name(f"{_TRASH}{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        stage.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
    if trash.is_dir() and any(trash.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(trash))
