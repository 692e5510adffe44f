"""Checkpoints and snapshots in the shared store, with ownership and liveness checked on every look.

What never changes lies in a version's meta.json under a seal: owner, layout, base model. What its
owner may change, the catalog knows: whether it is public, and when it ends. Of a version the catalog
does not know (yet) the metadata's own end counts, and it is not public.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import trainer_pb2

from services.common import store
from services.common.artifact_meta import decode_meta
from services.common.clock import now_ms
from services.common.errors import Forbidden, InvalidInput, MissingResource
from services.common.keyring import is_sealed
from services.common.tinker_path import KINDS, TinkerPath, check_name, parse_tinker_path
from services.scheduler.shared_store import in_store
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry

log = logging.getLogger(__name__)

SUPERSEDED_SECONDS = 60.0
"""A version no name points at may be one that is being published; it is left alone for so long."""

TenantOfDigest = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One version as it lies in the store."""

    path: TinkerPath
    directory: Path
    meta: trainer_pb2.ArtifactMeta
    size_bytes: int
    expires_ms: int  # 0 = never; as its owner set it last, where `find` or `pinned` answered it
    copied_from: str = ""
    copied_into: str = ""  # the project that was asked for

    @property
    def version(self) -> str:
        return self.directory.name


class Artifacts:
    """Implements ports.ArtifactReader. File access runs in threads: the store may be remote."""

    def __init__(self, root: Path, pepper: bytes, tenant_of_digest: TenantOfDigest, catalog: CatalogStore) -> None:
        self.root = root
        self.pepper = pepper
        self._tenant_of_digest = tenant_of_digest
        self._catalog = catalog

    async def weights_info(self, path: str, tenant_id: str, access_digest: str) -> pb.WeightsInfo:
        artifact = await self.find(path, tenant_id, access_digest)
        return pb.WeightsInfo(base_model=artifact.meta.base_model, layout=artifact.meta.layout, path=str(artifact.path))

    async def version_directory(self, path: str, tenant_id: str, access_digest: str) -> str:
        artifact = await self.find(path, tenant_id, access_digest)
        return store.relative(self.root, artifact.directory)

    async def find(self, path: str, tenant_id: str, access_digest: str, field: str = "path") -> Artifact:
        """What `tenant_id` may read. Raises InvalidInput, MissingResource, Forbidden."""
        artifact = await self.stored(parse_tinker_path(path, field))
        owner = artifact.meta.tenant_id
        entry = await self._entry(artifact)
        mine = owner == tenant_id or self._granted(owner, access_digest)
        if not mine and (entry is None or not entry.public):
            raise Forbidden(f"{artifact.path} belongs to another tenant")
        return _living(artifact, entry)

    async def pinned(self, path: TinkerPath, version: str) -> Artifact:
        """A version its reader was told of before, superseded or not. Raises InvalidInput, MissingResource.

        The end of the checkpoint is the end of its superseded versions too, whose files go later; a new one of
        the same name does not bring them back.
        """
        artifact = await in_store(self._read_pinned, path, version)
        entry = await self._catalog.checkpoint(artifact.meta.tenant_id, path)
        if entry is None:
            await self.stored(path)  # of what the catalog does not know, the name itself must be there
        elif entry.version != artifact.version and not entry.has_overwritten(artifact.meta.created_unix_ms):
            raise MissingResource(f"{path}: this version was deleted")
        return _living(artifact, entry if entry is not None and entry.version == artifact.version else None)

    async def _entry(self, artifact: Artifact) -> CheckpointEntry | None:
        """What the catalog says of this version; None when it speaks of another one, or of none."""
        entry = await self._catalog.checkpoint(artifact.meta.tenant_id, artifact.path)
        return entry if entry is not None and entry.version == artifact.version else None

    async def stored(self, path: TinkerPath) -> Artifact:
        """The version `path` names now, whoever asks. Raises InvalidInput, MissingResource."""
        return await in_store(self._read, path)

    async def owned(self, path: TinkerPath, tenant_id: str) -> Artifact:
        """The same if it is the tenant's own. Raises InvalidInput, MissingResource, Forbidden."""
        artifact = await self.stored(path)
        if artifact.meta.tenant_id != tenant_id:
            raise Forbidden(f"{path} belongs to another tenant")
        return artifact

    async def of_run(self, run_id: str) -> list[Artifact]:
        """Everything published of a run, whoever owns it, the oldest first; what is damaged is left out."""
        return await in_store(self._of_run, run_id)

    async def run_ids(self) -> list[str]:
        """Every run that has a directory in the store."""
        return await in_store(lambda: sorted(folder.name for folder in (self.root / "runs").glob("*")))

    async def remove(self, path: TinkerPath, version: str) -> None:
        """Deletes a version's files; its public name first, so no reader finds half of it.

        A newer version under the same name stays. Repeatable. Raises Unavailable when the store does not let it.
        """
        await in_store(self._remove, path, version)

    def _granted(self, owner: str, access_digest: str) -> bool:
        return access_digest != "" and self._tenant_of_digest(access_digest) == owner

    def _read(self, path: TinkerPath) -> Artifact:
        return self._read_version(path, store.resolve(self.root, path))

    def _read_version(self, path: TinkerPath, directory: Path) -> Artifact:
        raw = store.read_meta(directory, path)
        meta = _meta(raw, path)
        if not is_sealed(self.pepper, meta.ownership_mac, meta.tenant_id, path.model_id, path.kind, path.name):
            raise InvalidInput(f"{path}: its metadata does not carry this mesh's seal; it was changed or moved by hand")
        origin, project = (str(raw.get(name, "")) for name in ("copied_from", "copied_into"))
        return Artifact(path, directory, meta, _size(raw), meta.expires_unix_ms, origin, project)

    def _read_pinned(self, path: TinkerPath, version: str) -> Artifact:
        if not store.is_version_of(version, path.name):
            raise MissingResource(f"{path} has no version {version[:200]!r}")
        parent = str(Path(store.public_directory(path)).parent)
        directory = store.contained(self.root, f"{parent}/{version}")
        if not (directory / store.META_FILE).is_file():
            raise MissingResource(f"{path}: this version was deleted")
        return self._read_version(path, directory)

    def _of_run(self, run_id: str) -> list[Artifact]:
        found = [artifact for path in self._public_paths(run_id) if (artifact := self._usable(path))]
        return sorted(found, key=lambda artifact: artifact.meta.created_unix_ms)

    def _usable(self, path: TinkerPath) -> Artifact | None:
        try:
            return self._read(path)
        except (InvalidInput, MissingResource) as error:
            log.warning("artifact left out: %s", error)
            return None

    def _public_paths(self, run_id: str) -> Iterator[TinkerPath]:
        for kind in KINDS:
            folder = self.root / "runs" / run_id / kind
            if folder.is_dir():
                yield from (TinkerPath(run_id, kind, link.name) for link in folder.iterdir() if _is_public(link))

    def _remove(self, path: TinkerPath, version: str) -> None:
        public = self.root / store.public_directory(path)
        if public.is_symlink() and public.readlink().name == version:
            public.unlink(missing_ok=True)
        current = public.readlink().name if public.is_symlink() else ""
        for directory in public.parent.glob(f"{store.VERSION_PREFIX}{path.name}_*"):
            if not store.is_version_of(directory.name, path.name) or directory.name == current:
                continue
            if directory.name == version or _age_seconds(directory) > SUPERSEDED_SECONDS:
                with contextlib.suppress(FileNotFoundError):  # another replica deletes it too
                    shutil.rmtree(directory)


def _living(artifact: Artifact, entry: CheckpointEntry | None) -> Artifact:
    """Raises MissingResource."""
    expires = artifact.meta.expires_unix_ms if entry is None else entry.expires_ms
    if (expires and expires <= now_ms()) or (entry is not None and entry.doomed):
        raise MissingResource(f"{artifact.path} expired or is being deleted; its ttl_seconds are over")
    return replace(artifact, expires_ms=expires)


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


def _age_seconds(directory: Path) -> float:
    try:
        return time.time() - directory.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
