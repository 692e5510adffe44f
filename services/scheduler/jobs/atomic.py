"""Small files that are there whole or not at all, and what the shared store's troubles are called."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from services.common.errors import ContractViolation, Unavailable
from services.common.store import TEMPORARY_PREFIX

P = ParamSpec("P")
T = TypeVar("T")


async def in_job_store(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`work` in a thread. Raises Unavailable while the store is away, ContractViolation for a file that is missing."""
    try:
        return await asyncio.to_thread(work, *arguments, **named)
    except FileNotFoundError as error:
        name = Path(str(error.filename or "")).name
        raise ContractViolation(f"{name or 'a file'} of this job is missing in the shared store") from error
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno else type(error).__name__
        raise Unavailable(f"the shared store cannot be used for jobs now ({cause})") from error


def put(path: Path, data: bytes) -> None:
    """On disk under its name, or not at all."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}_{uuid.uuid4().hex}")
    try:
        write_synced(temporary, data)
        temporary.replace(path)
    except BaseException:  # nothing is handled here: the half-written file goes, the cause goes on
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def decoded(data: bytes, kind: type[T], name: str) -> T:
    """Raises ContractViolation for a file that is torn, or not what it should be."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ContractViolation(f"{name} of this job cannot be read: {error}") from error
