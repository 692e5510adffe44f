"""Entries of a tenant's catalog, and how functions/catalog.lua answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from tinkermesh.v1 import types_pb2 as types

from services.common.clock import now_ms
from services.common.tinker_path import SCHEME, TinkerPath


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run when it begins. `pool` is "" for a copy, which nobody trains."""

    base_model: str
    layout: types.AdapterLayout
    metadata: str = ""
    pool: str = ""

    def flat(self) -> list[str | bytes]:
        layout = self.layout.SerializeToString()
        return ["base_model", self.base_model, "layout", layout, "metadata", self.metadata, "pool", self.pool]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    path: TinkerPath
    version: str  # name of its directory
    created_ms: int
    size_bytes: int
    expires_ms: int  # 0 = never
    metadata: str
    public: bool
    doomed: bool = False
    since_ms: int = 0  # when its name came to be: overwriting keeps it, deleting ends it

    def alive(self) -> bool:
        return not self.doomed and (not self.expires_ms or self.expires_ms > now_ms())

    def has_overwritten(self, created_ms: int) -> bool:
        """A version of that time is an earlier one of this very checkpoint, which is alive."""
        return self.alive() and created_ms >= self.since_ms


@dataclass(frozen=True, slots=True)
class RunEntry:
    run_id: str
    facts: RunFacts
    created_ms: int
    project: str
    last_checkpoint: CheckpointEntry | None
    last_sampler_checkpoint: CheckpointEntry | None


@dataclass(frozen=True, slots=True)
class SessionEntry:
    session_id: str
    created_ms: int
    status: str  # active | finished | expired
    reason: str
    detail: str
    metadata: str
    display_name: str
    project: str

    def metadata_value(self, key: str) -> object:
        """None when there is no such key."""
        return msgspec.json.decode(self.metadata, type=dict[str, object]).get(key) if self.metadata else None


class Doomed(NamedTuple):
    path: TinkerPath
    version: str


def checkpoint_id(path: TinkerPath) -> str:
    return str(path).removeprefix(SCHEME)


def _path(checkpoint: str) -> TinkerPath:
    return TinkerPath(*checkpoint.split("/"))


def doomed_of(member: str) -> Doomed:
    checkpoint, _, version = member.rpartition(" ")
    return Doomed(_path(checkpoint), version)


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def checkpoint_of(checkpoint: str, row: Mapping[bytes, bytes]) -> CheckpointEntry:
    return CheckpointEntry(
        path=_path(checkpoint),
        version=row[b"version"].decode(),
        created_ms=int(row[b"created_ms"]),
        size_bytes=int(row[b"size"]),
        expires_ms=int(row[b"expires_ms"]),
        metadata=row[b"metadata"].decode(),
        public=row[b"public"] == b"1",
        doomed=b"doomed" in row,
        since_ms=int(row.get(b"since_ms", 0)),
    )


def _latest(entry: Sequence[Any]) -> CheckpointEntry | None:
    return checkpoint_of(entry[0].decode(), pairs(entry[1])) if entry else None


def run_of(entry: Sequence[Any]) -> RunEntry:
    row = pairs(entry[1])
    facts = RunFacts(
        base_model=row[b"base_model"].decode(),
        layout=types.AdapterLayout.FromString(row[b"layout"]),
        metadata=row[b"metadata"].decode(),
        pool=row[b"pool"].decode(),
    )
    return RunEntry(
        run_id=entry[0].decode(),
        facts=facts,
        created_ms=int(row[b"created_ms"]),
        project=row[b"project"].decode(),
        last_checkpoint=_latest(entry[2]),
        last_sampler_checkpoint=_latest(entry[3]),
    )


def session_of(session_id: str, row: Mapping[bytes, bytes]) -> SessionEntry:
    def text(name: bytes) -> str:
        return row.get(name, b"").decode()

    return SessionEntry(
        session_id=session_id,
        created_ms=int(row[b"created_ms"]),
        status=text(b"status"),
        reason=text(b"reason"),
        detail=text(b"detail"),
        metadata=text(b"metadata"),
        display_name=text(b"display_name"),
        project=text(b"project"),
    )
