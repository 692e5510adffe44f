"""Enters into the catalog what lies in the store and is not there: after an upgrade, or a loss of Redis."""

from __future__ import annotations

from tinkermesh.v1 import catalog_pb2 as pb

from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.registrar import register
from services.scheduler.store.catalog import CatalogStore


async def rebuild(store: CatalogStore, artifacts: Artifacts) -> pb.RebuildReply:
    """Repeatable at any time; what the catalog knows stays as it is there."""
    reply = pb.RebuildReply(runs=0, checkpoints=0)
    for run_id in await artifacts.run_ids():
        reply.runs += 1
        for artifact in await artifacts.of_run(run_id):
            reply.checkpoints += 1
            await register(store, artifact)
    return reply
