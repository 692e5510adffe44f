"""Checkpoints and snapshots in the shared store, with ownership checked on every look."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import trainer_pb2

from services.common import store
from services.common.artifact_meta import decode_meta
from services.common.errors import Forbidden, InvalidInput, MissingResource
from services.common.keyring import ownership_mac, same_digest
from services.common.tinker_path import KINDS, TinkerPath, check_name, parse_tinker_path

log = logging.getLogger(__name__)

TenantOfDigest = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One version as it lies in the store."""

    path: TinkerPath
    directory: Path
    meta: trainer_pb2.ArtifactMeta
    size_bytes: int

    def info(self) -> pb.CheckpointInfo:
        return pb.CheckpointInfo(
            checkpoint_id=self.path.checkpoint_id,
            path=str(self.path),
            created_unix_ms=self.meta.created_unix_ms,
            size_bytes=self.size_bytes,
            user_metadata_json=self.meta.user_metadata_json,
            expires_unix_ms=self.meta.expires_unix_ms,
        )


class Artifacts:
    """Implements ports.ArtifactReader. File access runs in threads: the store may be remote."""

    def __init__(self, root: Path, pepper: bytes, tenant_of_digest: TenantOfDigest) -> None:
        self._root = root
        self._pepper = pepper
        self._tenant_of_digest = tenant_of_digest

    async def weights_info(self, path: str, tenant_id: str, access_digest: str) -> pb.WeightsInfo:
        artifact = await self.find(path, tenant_id, access_digest)
        return pb.WeightsInfo(base_model=artifact.meta.base_model, layout=artifact.meta.layout, path=str(artifact.path))

    async def version_directory(self, path: str, tenant_id: str, access_digest: str) -> str:
        artifact = await self.find(path, tenant_id, access_digest)
        return store.relative(self._root, artifact.directory)

    async def find(self, path: str, tenant_id: str, access_digest: str, field: str = "path") -> Artifact:
        """Raises InvalidInput, MissingResource, Forbidden."""
        parsed = parse_tinker_path(path, field)
        return await asyncio.to_thread(self._find, parsed, tenant_id, access_digest)

    async def of_model(self, model_id: str, tenant_id: str) -> list[Artifact]:
        """Everything published of a model, the newest first. Raises Forbidden when it is another tenant's."""
        return await asyncio.to_thread(self._of_model, model_id, tenant_id)

    async def delete(self, path: TinkerPath, tenant_id: str) -> None:
        """The public link goes first, so no reader finds a half-deleted version.

        Raises MissingResource when it is not there (any more), Forbidden.
        """
        await asyncio.to_thread(self._delete, path, tenant_id)

    def _find(self, path: TinkerPath, tenant_id: str, access_digest: str) -> Artifact:
        artifact = self._read(path)
        owner = artifact.meta.tenant_id
        if owner != tenant_id and not self._granted(owner, access_digest):
            raise Forbidden(f"{path} belongs to another tenant")
        expires = artifact.meta.expires_unix_ms
        if expires and expires <= time.time() * 1000:
            raise MissingResource(f"{path} expired; its ttl_seconds are over")
        return artifact

    def _granted(self, owner: str, access_digest: str) -> bool:
        return access_digest != "" and self._tenant_of_digest(access_digest) == owner

    def _read(self, path: TinkerPath) -> Artifact:
        directory = store.resolve(self._root, path)
        raw = store.read_meta(directory, path)
        meta = _meta(raw, path)
        expected = ownership_mac(self._pepper, meta.tenant_id, path.model_id, path.kind, path.name)
        if not same_digest(expected, meta.ownership_mac):
            raise InvalidInput(f"{path}: its metadata does not carry this mesh's seal; it was changed or moved by hand")
        return Artifact(path, directory, meta, _size(raw))

    def _of_model(self, model_id: str, tenant_id: str) -> list[Artifact]:
        found = [artifact for path in self._public_paths(model_id) if (artifact := self._usable(path, tenant_id))]
        return sorted(found, key=lambda artifact: artifact.meta.created_unix_ms, reverse=True)

    def _usable(self, path: TinkerPath, tenant_id: str) -> Artifact | None:
        try:
            return self._find(path, tenant_id, "")
        except (InvalidInput, MissingResource) as error:
            log.warning("artifact left out: %s", error)
            return None

    def _public_paths(self, model_id: str) -> Iterator[TinkerPath]:
        for kind in KINDS:
            folder = self._root / "runs" / model_id / kind
            if folder.is_dir():
                yield from (TinkerPath(model_id, kind, link.name) for link in folder.iterdir() if _is_public(link))

    def _delete(self, path: TinkerPath, tenant_id: str) -> None:
        self._find_for_deletion(path, tenant_id)
        public = self._root / store.public_directory(path)
        public.unlink(missing_ok=True)
        for version in public.parent.glob(f"{store.VERSION_PREFIX}{path.name}_*"):
            if _version_of(version.name) == path.name:
                shutil.rmtree(version, ignore_errors=True)

    def _find_for_deletion(self, path: TinkerPath, tenant_id: str) -> None:
        artifact = self._read(path)
        if artifact.meta.tenant_id != tenant_id:
            raise Forbidden(f"{path} belongs to another tenant")


def _meta(raw: dict[str, Any], path: TinkerPath) -> trainer_pb2.ArtifactMeta:
    meta = decode_meta(raw, str(path))
    if meta.layout.rank < 1 or not meta.base_model:
        raise InvalidInput(f"{path}: {store.META_FILE} lacks base_model or a rank")
    return meta


def _size(raw: dict[str, Any]) -> int:
    files = raw.get("files")
    if not isinstance(files, dict):
        return 0
    sizes = (entry.get("bytes") for entry in files.values() if isinstance(entry, dict))
    return sum(int(size) for size in sizes if isinstance(size, (int, str)) and str(size).isdigit())


def _is_public(link: Path) -> bool:
    try:
        check_name(link.name, "name")
    except InvalidInput:
        return False
    return (link / store.META_FILE).is_file()


def _version_of(directory_name: str) -> str:
    """``_version_<name>_<unique>`` -> name; names may hold underscores, the unique part does not."""
    return directory_name.removeprefix(store.VERSION_PREFIX).rpartition("_")[0]
