"""The shared store, the state directory, keys and pepper."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from services.common.clock import now_ms
from services.common.errors import InvalidInput
from services.common.findings import Finding, error, note, ok, warning
from services.common.keyring import Keyring, load_pepper

FREE_ERROR = 256 << 20
FREE_WARNING = 2 << 30
FEW_INODES = 1_000
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def store(root: Path) -> Iterator[Finding]:
    """Whether a trainer could publish there: write, sync, rename a directory, replace a link."""
    if not root.is_dir():
        remedy = f"create or mount it: it must be the same directory for schedulers, trainers and samplers ({root})"
        yield error("store", f"{root} is no directory", remedy)
        return
    probe = root / f".doctor_{uuid.uuid4().hex}"
    try:
        _publish(probe)
    except OSError as wrong:
        remedy = f"give user {os.geteuid()} write access to {root}, or mount it writable"
        if wrong.errno == errno.ENOSPC:
            remedy = "free space there: delete checkpoints, or make the volume larger"
        yield error("store", f"{root} cannot be written: {wrong.strerror}", remedy)
    else:
        yield ok("store", f"{root} takes files, and renames are atomic")
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    yield space("store space", root)


def _publish(probe: Path) -> None:
    """What services/common/publish.py does to a store. Raises OSError."""
    (temporary := probe / "_tmp").mkdir(parents=True)
    with (temporary / "file").open("wb") as file:
        file.write(b"0" * 4096)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(probe / "version")
    for link in (probe / "current", probe / "next"):
        link.symlink_to("version")
    (probe / "next").replace(probe / "current")
    if (probe / "current" / "file").stat().st_size != 4096 or os.path.lexists(probe / "next"):
        raise OSError(errno.EIO, "a renamed link does not replace the old one")


def space(check: str, directory: Path) -> Finding:
    usage, nodes = shutil.disk_usage(directory), os.statvfs(directory)
    text = f"{usage.free / (1 << 30):.1f} of {usage.total / (1 << 30):.1f} GiB free at {directory}"
    remedy = "delete checkpoints (tinkermesh checkpoints delete) or logs, or make the volume larger"
    if usage.free < FREE_ERROR:
        return error(check, text, remedy)
    if usage.free < FREE_WARNING:
        return warning(check, text, remedy)
    if nodes.f_files and nodes.f_favail < FEW_INODES:
        return warning(check, f"{nodes.f_favail} of {nodes.f_files} inodes free at {directory}", remedy)
    return ok(check, text)


def state(directory: Path) -> Iterator[Finding]:
    """Of a mesh on this machine."""
    if not directory.is_dir():
        yield note("state directory", f"{directory} does not exist yet: tinkermesh up makes it")
        return
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & OPEN_TO_OTHERS:
        text = f"{directory} has mode {mode:04o}: others on this machine reach keys, weights and logs"
        yield warning("state directory", text, f"chmod 700 {directory}")
    else:
        yield ok("state directory", f"{directory} is this user's alone")
    if (directory / "redis").is_dir():
        yield space("state space", directory)


def secrets(key_file: Path | None, pepper_file: Path | None, *, ours: bool) -> Iterator[Finding]:
    """`ours`: on a state directory, where `tinkermesh up` makes both; elsewhere a missing one is an error."""
    if pepper_file is None:
        return
    if ours and not pepper_file.exists() and (key_file is None or not key_file.exists()):
        yield note("pepper", "none yet: tinkermesh up makes it")
        return
    try:
        pepper = load_pepper(pepper_file)
    except InvalidInput as wrong:
        remedy = "restore it from the copy you keep: without it no key works and no checkpoint belongs to anybody"
        yield error("pepper", f"{wrong.message} ({pepper_file})", remedy)
        return
    yield _private("pepper", pepper_file, f"{pepper_file} holds a pepper", ours=ours)
    if key_file is not None:
        yield _keys(key_file, pepper, ours=ours)


def _keys(path: Path, pepper: bytes, *, ours: bool) -> Finding:
    try:
        entries = Keyring(path, pepper).entries()
    except InvalidInput as wrong:
        return error("keys", wrong.message, "restore the file; keys made while the mesh ran are not in it")
    active = sum(entry.state(now_ms()) == "active" for entry in entries.values())
    return _private("keys", path, f"{active} active of {len(entries)} in {path}", ours=ours)


def _private(check: str, path: Path, text: str, *, ours: bool) -> Finding:
    """Modes of mounted Secrets are the cluster's business."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    if ours and mode & OPEN_TO_OTHERS:
        return error(check, f"{path} has mode {mode:04o}: others on this machine can read it", f"chmod 600 {path}")
    return ok(check, text)
