"""Units that make, load, save or export one slot: what is resolved and checked before the trainer is asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.keyring import ownership_mac
from services.common.store import public_directory
from services.common.tinker_path import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    WEIGHTS,
    TinkerPath,
    check_name,
    parse_tinker_path,
)
from services.scheduler.core.plans import SinglePlan
from services.scheduler.core.view import Op
from services.scheduler.dispatch.units import Prepared, barrier_item
from services.scheduler.ports import ArtifactReader
from services.scheduler.store.commands import StoredCommand
from services.scheduler.store.models import ModelReader, ModelRow
from services.scheduler.store.training import TrainingStore


@dataclass(frozen=True, slots=True)
class SlotUnits:
    """Builds the units of single barriers; raises UserError where the command must fail in its turn."""

    store: TrainingStore
    models: ModelReader
    artifacts: ArtifactReader
    pepper: bytes

    async def build(self, pool: str, unit: pb.Unit, plan: SinglePlan, stored: StoredCommand) -> Prepared:
        """Raises UserError: the command settles with it, the trainer is not asked."""
        row = await self.models.row(pool, stored.model_id)
        if row is None:
            raise InvalidInput(f"model_id {stored.model_id} is not known")
        op = plan.step.command.op
        path = ""
        if op is Op.CREATE:
            init_slot(unit, plan.slot, stored, row)
        elif op in (Op.CREATE_FROM_CHECKPOINT, Op.LOAD_WEIGHTS):
            path = await self._load(unit, plan, stored, row)
        elif op is Op.SAVE_WEIGHTS:
            _save(unit, plan.slot, row.load_number, stored, row, self.pepper)
        elif op is Op.SAVE_EXTERNAL:
            _external(unit, plan.slot, row.load_number, stored, row, self.pepper)
        else:
            name = await self._snapshot_name(pool, unit, stored)
            _snapshot(unit, plan.slot, row.load_number, name, stored, row, self.pepper)
        return Prepared(unit, (barrier_item(plan.step, plan.slot, path),), stored.key)

    async def _load(self, unit: pb.Unit, plan: SinglePlan, stored: StoredCommand, row: ModelRow) -> str:
        create = plan.step.command.op is Op.CREATE_FROM_CHECKPOINT
        body = stored.command.create_from_checkpoint if create else stored.command.load_weights
        path = parse_tinker_path(body.path)
        if path.kind != WEIGHTS:
            what = "a sampler snapshot" if path.kind == SAMPLER_WEIGHTS else "an export"
            raise InvalidInput(f"path: {body.path} is {what}; training loads from {WEIGHTS}/ only")
        info = await self.artifacts.weights_info(body.path, stored.tenant, body.weights_access_digest)
        _check_compatible(info, row.base_model, None if create else row.layout)
        directory = await self.artifacts.version_directory(body.path, stored.tenant, body.weights_access_digest)
        unit.load.CopyFrom(
            pb.LoadSlotWork(
                slot=plan.slot,
                model_id=stored.model_id,
                layout=info.layout,
                directory=directory,
                optimizer=body.optimizer,
                into_loaded=not create,
                load_number=0 if create else row.load_number,
            )
        )
        return str(body.path)

    async def _snapshot_name(self, pool: str, unit: pb.Unit, stored: StoredCommand) -> str:
        body = stored.command.save_for_sampler
        if body.name:
            check_name(body.name, "path")
        return await self.store.snapshot_name(pool, unit.term, stored.model_id, body.name, stored.key)

    async def save_again(self, pool: str, unit: pb.Unit, slot: int, load_number: int, stored: StoredCommand) -> None:
        """A save that was captured and not published, under the name it got then."""
        row = await self.models.row(pool, stored.model_id)
        if row is None:
            raise InvalidInput(f"model_id {stored.model_id} is not known")
        body = stored.command.WhichOneof("body")
        if body == "save_weights":
            _save(unit, slot, load_number, stored, row, self.pepper)
        elif body == "save_external":
            _external(unit, slot, load_number, stored, row, self.pepper)
        else:
            name = await self.models.artifact(pool, stored.key)
            _snapshot(unit, slot, load_number, name, stored, row, self.pepper)


def init_slot(unit: pb.Unit, slot: int, stored: StoredCommand, row: ModelRow) -> None:
    body = stored.command.create_model
    seed = body.seed if body.HasField("seed") else _seed_of(stored.model_id)
    unit.init.CopyFrom(pb.InitSlotWork(slot=slot, model_id=stored.model_id, layout=row.layout, seed=seed))


def _seed_of(model_id: str) -> int:
    """Without a seed of the client's every model starts elsewhere, and a repeat of its init alike."""
    return int.from_bytes(hashlib.blake2b(model_id.encode(), digest_size=4).digest(), "little")


def _save(unit: pb.Unit, slot: int, load_number: int, stored: StoredCommand, row: ModelRow, pepper: bytes) -> None:
    body = stored.command.save_weights
    name = check_name(body.name or f"checkpoint-{stored.seq:06d}", "path")
    path = TinkerPath(stored.model_id, WEIGHTS, name)
    ttl = body.ttl_seconds if body.HasField("ttl_seconds") else 0
    meta = _meta(path, row, pepper, stored, body.user_metadata_json, ttl)
    directory = public_directory(path)
    unit.save.CopyFrom(
        pb.SaveSlotWork(slot=slot, load_number=load_number, meta=meta, directory=directory, overwrite=body.overwrite)
    )


def _snapshot(
    unit: pb.Unit, slot: int, load_number: int, name: str, stored: StoredCommand, row: ModelRow, pepper: bytes
) -> None:
    body = stored.command.save_for_sampler
    path = TinkerPath(stored.model_id, SAMPLER_WEIGHTS, name)
    ttl = body.ttl_seconds if body.HasField("ttl_seconds") else 0
    meta = _meta(path, row, pepper, stored, body.user_metadata_json, ttl)
    unit.snapshot.CopyFrom(
        pb.SnapshotSlotWork(slot=slot, load_number=load_number, meta=meta, directory=public_directory(path))
    )


def _external(unit: pb.Unit, slot: int, load_number: int, stored: StoredCommand, row: ModelRow, pepper: bytes) -> None:
    body = stored.command.save_external
    path = TinkerPath(stored.model_id, EXTERNAL_WEIGHTS, check_name(body.name, "path"))
    meta = _meta(path, row, pepper, stored, "", body.ttl_seconds)
    unit.snapshot.CopyFrom(
        pb.SnapshotSlotWork(slot=slot, load_number=load_number, meta=meta, directory=public_directory(path))
    )


def _meta(
    path: TinkerPath, row: ModelRow, pepper: bytes, stored: StoredCommand, user_metadata: str, ttl_seconds: int
) -> pb.ArtifactMeta:
    """Equal for every run of the same save, so the trainer knows its own publication again, and for no other: two
    that were admitted in one millisecond differ in `seq`."""
    created = stored.admitted_ms
    return pb.ArtifactMeta(
        tenant_id=row.tenant,
        ownership_mac=ownership_mac(pepper, row.tenant, path.model_id, path.kind, path.name),
        model_id=path.model_id,
        kind=path.kind,
        name=path.name,
        base_model=row.base_model,
        layout=row.layout,
        user_metadata_json=user_metadata,
        created_unix_ms=created,
        expires_unix_ms=created + ttl_seconds * 1000 if ttl_seconds else 0,
        seq=stored.seq,
    )


def _check_compatible(info: scheduler_pb2.WeightsInfo, base_model: str, layout: types.AdapterLayout | None) -> None:
    """Raises InvalidInput naming the first field that differs, with both values (CKPT-12)."""
    if info.base_model != base_model:
        raise InvalidInput(f"base_model: checkpoint {info.path} has {info.base_model!r}, the model has {base_model!r}")
    if layout is None:
        return
    for field in ("rank", "alpha", "train_attn", "train_mlp", "train_unembed"):
        saved, wanted = getattr(info.layout, field), getattr(layout, field)
        if saved != wanted:
            raise InvalidInput(f"{field}: checkpoint {info.path} has {saved}, the model has {wanted}")
