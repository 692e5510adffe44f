"""Atomic publication of a directory under a public name.

    _tmp_<name>_<uuid>        being written; a crash leaves it as residue
    _version_<name>_<uuid>    complete and immutable, made by one rename
    <name>                    relative link to the current version, swung by one replace

Readers of <name> see the old version or the new one, never a mixture and never nothing.

With a stage (services/common/publication_fence.py) what is being written and the new link lie there
until the rename or link that makes them visible.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import InvalidInput, StaleFence
from services.common.store import META_FILE, TEMPORARY_PREFIX, VERSION_PREFIX
from services.common.tinker_path import SAMPLER_WEIGHTS, check_name

_OWN = re.compile(rf"(?:{TEMPORARY_PREFIX}|{VERSION_PREFIX})(.+)_[0-9a-f]{{32}}")
_TRASH = f"{TEMPORARY_PREFIX}trash"

Stage = Callable[[], Path | None]
"""Where to prepare; None = beside the public name. Raises StaleFence when this process may not publish any more."""

Reached = Callable[[str], None]
"""Told each step as it is done; tests stop the process there."""


def _nothing(step: str) -> None:
    pass


def _beside() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Who publishes: `same` recognises this very publication in an earlier version's metadata.

    `alone`: no other attempt to publish the name can still be at it, so what one left half-way is removed.
    """

    overwrite: bool
    term: int
    same: Callable[[dict[str, Any]], bool]
    alone: bool = True


def public_path(root: Path, directory: str) -> Path:
    """`directory` below the real root, its last part not followed. Raises InvalidInput when it leaves the root."""
    real_root = root.resolve()
    parent = (real_root / directory).parent.resolve()
    if not parent.is_relative_to(real_root) or parent == real_root or directory.startswith("/"):
        raise InvalidInput(f"directory {directory[:300]!r} leaves the store")
    return parent / check_name(Path(directory).name, "directory")


def check_free(public: Path, claim: Claim) -> None:
    """Raises InvalidInput when the name is taken, StaleFence when a newer term published it."""
    if not os.path.lexists(public):
        return
    if not public.is_symlink():
        raise InvalidInput(
            f"{public.name} is a plain directory from elsewhere and is never overwritten; pick another name"
        )
    current = _read_meta(public)
    if claim.same(current):
        return
    if not claim.overwrite:
        raise InvalidInput(
            f"name {public.name!r} exists already; pick another name or pass overwrite where it is offered"
        )
    if _term(current) > claim.term:
        raise StaleFence(f"{public.name} was published under the newer term {current['term']}")


def publish(
    public: Path,
    fill: Callable[[Path], None],
    claim: Claim,
    *,
    reached: Reached = _nothing,
    stage: Stage = _beside,
) -> Path:
    """Writes a new version by `fill` and makes `public` name it; answers the version directory.

    Of several attempts at once to publish the same without `overwrite`, the first to link its version
    wins, and all answer that one.

    Raises InvalidInput or StaleFence as `check_free`, StaleFence as `stage`, OSError when the store
    cannot take it; the public name is then what it was before.
    """
    place = stage() or public.parent
    try:
        return _publish(public, place, fill, claim, reached)
    except OSError:
        if (other := stage() or public.parent) == place:
            raise
    return _publish(public, other, fill, claim, reached)  # the first place was taken away, wrongly


def _publish(public: Path, place: Path, fill: Callable[[Path], None], claim: Claim, reached: Reached) -> Path:
    if not claim.overwrite and (earlier := _own_version(public, claim)) is not None:
        return earlier
    _make_parents(public.parent)
    if claim.alone:
        _discard_residue(public, claim)
    unique = uuid.uuid4().hex
    temporary = place / f"{TEMPORARY_PREFIX}{public.name}_{unique}"
    version = public.parent / f"{VERSION_PREFIX}{public.name}_{unique}"
    try:
        temporary.mkdir()
        reached("temporary")
        fill(temporary)
        reached("written")
        if (earlier := _equal_version(public, temporary, claim)) is not None:
            _discard(temporary)
            return earlier
        _seal(temporary, version)
        reached("renamed")
        return _swing(public, place, version, claim, reached)
    except BaseException:  # nothing is handled here: half-written files go, the cause goes on
        _clean_up(public, temporary, version)
        raise


def _seal(temporary: Path, version: Path) -> None:
    """On disk first, then under its final name."""
    _sync_tree(temporary)
    temporary.rename(version)
    _sync(version.parent)


def _clean_up(public: Path, temporary: Path, version: Path) -> None:
    """Must not hide the cause; what stays behind is residue for the next attempt."""
    with contextlib.suppress(OSError):
        _discard(temporary)
        _discard_unlinked(public, version)


def _discard_residue(public: Path, claim: Claim) -> None:
    """Removes what earlier attempts to publish this name left half-way."""
    for entry in _entries(public.parent, TEMPORARY_PREFIX):
        if _name_of(entry) == public.name:
            _discard(entry)
    if _own_version(public, claim) is not None:
        return  # one of them got there: what it superseded may still be read
    for entry in _entries(public.parent, VERSION_PREFIX):
        if _name_of(entry) == public.name and claim.same(_read_meta(entry)):
            _discard(entry)  # complete, but its name was never swung to it


def collect_garbage(parent: Path, grace_seconds: float, now: float | None = None) -> list[str]:
    """Removes versions no public name points at, and residues, once older than the grace period.

    A version's age counts from when it was superseded. Snapshots stay: samplers pin them beyond
    their name. Links are never followed out of `parent`.
    """
    horizon = (time.time() if now is None else now) - grace_seconds
    linked = {_target_name(entry) for entry in parent.iterdir() if entry.is_symlink()}
    removed = []
    prefixes = [TEMPORARY_PREFIX] if parent.name == SAMPLER_WEIGHTS else [TEMPORARY_PREFIX, VERSION_PREFIX]
    for prefix in prefixes:
        for entry in _entries(parent, prefix):
            if entry.name not in linked and _changed_at(entry) < horizon:
                _discard(entry)
                removed.append(entry.name)
    return removed


def _target_name(link: Path) -> str:
    """Empty when it has gone since it was listed."""
    try:
        return link.readlink().name
    except FileNotFoundError:
        return ""


def _changed_at(entry: Path) -> float:
    """Unix seconds; never for what another attempt has renamed or removed since it was listed."""
    try:
        return entry.lstat().st_mtime
    except FileNotFoundError:
        return math.inf


def _swing(public: Path, place: Path, version: Path, claim: Claim, reached: Reached) -> Path:
    """Makes `public` a relative link to `version`; the last look at who holds the name is here.

    Answers what it names then: another attempt's version, if that was first and `claim` does not overwrite.
    """
    check_free(public, claim)
    if not claim.overwrite:
        if (first := _link_new(public, place, version, claim)) != version:
            _discard(version)
            return first
    elif public.is_symlink():
        _replace_link(public, place, version, reached)
    else:
        _link_new(public, place, version, claim)
    _sync(public.parent)
    reached("published")
    return version


def _prepared_link(public: Path, place: Path, version: Path) -> Path:
    link = place / f"{TEMPORARY_PREFIX}{public.name}_{uuid.uuid4().hex}"
    link.symlink_to(version.name)
    return link


def _replace_link(public: Path, place: Path, version: Path, reached: Reached) -> None:
    link = _prepared_link(public, place, version)
    with contextlib.suppress(FileNotFoundError):
        os.utime(public.resolve())  # its grace period starts now
    reached("linked")
    link.replace(public)


def _link_new(public: Path, place: Path, version: Path, claim: Claim) -> Path:
    """What `public` names afterwards."""
    link = _prepared_link(public, place, version) if place != public.parent else None
    try:  # either fails if another took the name since the look
        if link is None:
            public.symlink_to(version.name)
        else:
            os.link(link, public, follow_symlinks=False)
    except FileExistsError as error:
        if not claim.overwrite and (first := _own_version(public, claim)) is not None:
            return first
        raise InvalidInput(f"name {public.name!r} was taken a moment ago; pick another name") from error
    finally:
        if link is not None:
            link.unlink(missing_ok=True)
    return version


def _own_version(public: Path, claim: Claim) -> Path | None:
    """What this publication already made in an earlier attempt."""
    return public.resolve() if public.is_symlink() and claim.same(_read_meta(public)) else None


def _equal_version(public: Path, temporary: Path, claim: Claim) -> Path | None:
    """As `_own_version`, but only if every file is the same: an overwrite may bring new content."""
    earlier = _own_version(public, claim)
    if earlier is None:
        return None
    current, fresh = _read_meta(earlier), _read_meta(temporary)
    return earlier if {**current, "term": 0} == {**fresh, "term": 0} else None


def _read_meta(directory: Path) -> dict[str, Any]:
    try:
        meta = json.loads((directory / META_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _term(meta: dict[str, Any]) -> int:
    term = meta.get("term", 0)
    return term if isinstance(term, int) else 0


def _entries(parent: Path, prefix: str) -> Iterator[Path]:
    if parent.is_dir():
        yield from (entry for entry in sorted(parent.iterdir()) if entry.name.startswith(prefix))


def _name_of(entry: Path) -> str:
    match = _OWN.fullmatch(entry.name)
    return match[1] if match else ""


def _discard(entry: Path) -> None:
    """A rename first: a zombie still writing into the directory can then no longer publish it."""
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
        return
    trash = entry.with_name(f"{_TRASH}_{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        entry.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _discard_unlinked(public: Path, version: Path) -> None:
    if not public.is_symlink() or public.readlink().name != version.name:
        _discard(version)


def _make_parents(directory: Path) -> None:
    missing = [d for d in (directory, *directory.parents) if not d.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync_tree(directory: Path) -> None:
    for file in directory.iterdir():
        _sync(file)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
