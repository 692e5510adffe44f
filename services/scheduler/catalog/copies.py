"""Copies of checkpoints: versions of their own in a run of their own, under their new owner's seal."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path

from tinkermesh.v1 import catalog_pb2 as pb
from tinkermesh.v1 import trainer_pb2

from services.common import store as layout
from services.common.artifact_meta import encode_meta
from services.common.clock import now_ms
from services.common.errors import KeyConflict
from services.common.ids import ModelId, key_hash
from services.common.keyring import ownership_mac
from services.common.publish import Claim, collect_garbage, public_path, publish
from services.common.tinker_path import TinkerPath, parse_tinker_path
from services.scheduler.artifacts import Artifact, Artifacts
from services.scheduler.catalog.registrar import register
from services.scheduler.session_directory import COPY, SessionDirectory
from services.scheduler.shared_store import in_store
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import RunFacts

RESIDUE_SECONDS = 3600.0
"""A retry may come while an earlier attempt still copies, on any replica; nothing younger is anybody's residue."""


class Copies:
    def __init__(self, store: CatalogStore, artifacts: Artifacts, sessions: SessionDirectory) -> None:
        self._store = store
        self._artifacts = artifacts
        self._sessions = sessions

    async def copy(self, request: pb.CopyCheckpointRequest) -> str:
        """The path of the copy; a retry under its key answers the same.

        Raises InvalidInput, MissingResource, Forbidden, KeyConflict, UnknownId, Unavailable.
        """
        run_id = await self._run_id(request)
        copy = next(iter(await self._artifacts.of_run(run_id)), None)
        if copy is None:
            tenant, digest = request.tenant_id, request.weights_access_digest
            source = await self._artifacts.find(request.source_path, tenant, digest, "source_path")
            copy = await self._made(run_id, source, request)
        _check_same(copy, request)
        metadata = await self._metadata(request)
        facts = RunFacts(copy.meta.base_model, copy.meta.layout, metadata)
        await self._store.add_run(
            request.tenant_id,
            run_id,
            copy.meta.created_unix_ms,
            facts,
            "" if request.session_id else request.project_id,
        )
        await register(self._store, copy)
        return str(copy.path)

    async def _metadata(self, request: pb.CopyCheckpointRequest) -> str:
        """Of the source's run, which tells a recipe how to go on; another tenant's stays its own."""
        source = await self._store.run(request.tenant_id, parse_tinker_path(request.source_path).model_id)
        return "" if source is None else source.facts.metadata

    async def _run_id(self, request: pb.CopyCheckpointRequest) -> str:
        """Nobody can train under it: the number is taken in its session, or the session exists nowhere."""
        if not request.session_id:
            key = request.idempotency_key or uuid.uuid4().hex
            return str(ModelId(str(uuid.UUID(key_hash("copy", request.tenant_id, key))), 0))
        seq_id = request.model_seq_id
        held = await self._sessions.claim_model(request.tenant_id, request.session_id, seq_id, COPY)
        if held != COPY:
            raise KeyConflict(f"model_seq_id {seq_id} of this session already names a model; use the next one")
        return str(ModelId(request.session_id, seq_id))

    async def _made(self, run_id: str, source: Artifact, request: pb.CopyCheckpointRequest) -> Artifact:
        path = TinkerPath(run_id, source.path.kind, source.path.name)
        meta = _meta(path, source, request, self._artifacts.pepper)
        await in_store(_write, self._artifacts.root, path, source, meta, request.project_id)
        return await self._artifacts.stored(path)


def _check_same(copy: Artifact, request: pb.CopyCheckpointRequest) -> None:
    """An earlier attempt under this key, or one beside this, may have made another copy. Raises KeyConflict."""
    said = f"this key already made {copy.path}"
    if copy.copied_from != request.source_path:
        raise KeyConflict(f"{said}; use another one for {request.source_path}")
    if _lifetime_ms(copy.meta) != _asked_lifetime_ms(request):
        raise KeyConflict(f"{said} with another ttl_seconds; use another key")
    if copy.copied_into != request.project_id:
        raise KeyConflict(f"{said} with another destination_project_id; use another key")


def _meta(
    path: TinkerPath, source: Artifact, request: pb.CopyCheckpointRequest, pepper: bytes
) -> trainer_pb2.ArtifactMeta:
    now = now_ms()
    meta = trainer_pb2.ArtifactMeta()
    meta.CopyFrom(source.meta)
    meta.tenant_id, meta.model_id = request.tenant_id, path.model_id
    meta.ownership_mac = ownership_mac(pepper, request.tenant_id, path.model_id, path.kind, path.name)
    meta.created_unix_ms, meta.seq = now, 0
    lifetime = _asked_lifetime_ms(request)
    meta.expires_unix_ms = now + lifetime if lifetime else 0
    return meta


def _asked_lifetime_ms(request: pb.CopyCheckpointRequest) -> int:
    """0 = for ever."""
    return request.ttl_seconds * 1000 if request.HasField("ttl_seconds") else 0


def _lifetime_ms(meta: trainer_pb2.ArtifactMeta) -> int:
    return meta.expires_unix_ms - meta.created_unix_ms if meta.expires_unix_ms else 0


def _write(root: Path, path: TinkerPath, source: Artifact, meta: trainer_pb2.ArtifactMeta, project: str) -> None:
    origin = str(source.path)
    copied = {"copied_from": origin, "copied_into": project}

    def fill(directory: Path) -> None:
        for file in source.directory.iterdir():
            if file.name != layout.META_FILE:
                _share(file, directory / file.name)
        stored = layout.read_meta(source.directory, source.path) | encode_meta(meta) | copied
        (directory / layout.META_FILE).write_text(json.dumps(stored, indent=1, sort_keys=True))

    public = public_path(root, layout.public_directory(path))
    if public.parent.is_dir():
        collect_garbage(public.parent, RESIDUE_SECONDS)  # of attempts whose process died
    claim = Claim(overwrite=False, term=0, same=lambda stored: stored.get("copied_from") == origin, alone=False)
    publish(public, fill, claim)


def _share(source: Path, target: Path) -> None:
    """Versions are immutable, so two may share a file's bytes; where that cannot be, they are copied."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
