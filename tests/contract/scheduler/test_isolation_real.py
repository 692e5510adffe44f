"""FAIL-13 on the real trainer: a poison datum fails its pass half-way, and leaves nothing behind in anyone's window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.datum_blocks import block_offsets
from tests.contract.scheduler.real_trainer import RealTrainerMesh, real_trainer_mesh
from tests.contract.scheduler.requests import batch_request, new_session
from tests.contract.trainer.hooked_engine import POISON
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TENANTS, LENGTHS = 6, [9, 14, 11, 16]
GUILTY = 3
TOLERANCE = 1e-5
"""Of log-probabilities after a step, between passes of different company (docs/performance.md)."""

Outcome = tuple[bytes, bytes, dict[str, Any]]
"""Of a tenant: logprobs of its pass, logprobs after a step, checksums of its weights and moments."""


def request(tenant: int, model: str, *, poisoned: bool) -> tuple[pb.SubmitRequest, bytes]:
    made, payload = batch_request(model, 1, LENGTHS, tenant=f"tenant-{tenant}", salt=100 * tenant)
    if poisoned:
        table = made.command.batch.table
        start = block_offsets(table.lengths, table.widths, 1)[2]
        payload = payload[:start] + np.array([POISON], "<i4").tobytes() + payload[start + 4 :]
    return made, payload


async def sent(mesh: RealTrainerMesh, companies: list[list[int]], poison: int | None = None) -> dict[int, str]:
    """Each company's requests wait together and so share a pass; request ids by tenant."""
    requests: dict[int, str] = {}
    for company in companies:
        async with mesh.held():
            for tenant in company:
                model = mesh.models[tenant]
                requests[tenant] = await mesh.submit(*request(tenant, model, poisoned=tenant == poison))
        for tenant in company:
            await mesh.settled(requests[tenant])
    return requests


async def outcomes(mesh: RealTrainerMesh, requests: dict[int, str], tenants: list[int]) -> dict[int, Outcome]:
    found = {}
    for tenant in tenants:
        name, model = f"tenant-{tenant}", mesh.models[tenant]
        first = (await mesh.done(requests[tenant])).batch.logprobs
        await mesh.done(await mesh.step(model, 2, tenant=name))
        await mesh.done(await mesh.command(model, 3, tenant=name, save_weights={"name": "after"}))
        after = (await mesh.done(await mesh.batch(model, 4, [12], tenant=name, backward=False))).batch.logprobs
        meta = json.loads((mesh.root / f"runs/{model}/weights/after/meta.json").read_text())
        found[tenant] = (first, after, {n: f for n, f in meta["files"].items() if n.endswith("safetensors")})
    return found


async def opened(mesh: RealTrainerMesh, tenants: list[int]) -> None:
    mesh.models = {n: await mesh.opened(new_session(), tenant=f"tenant-{n}") for n in tenants}


async def closed(mesh: RealTrainerMesh, tenants: list[int]) -> None:
    for tenant in tenants:
        await mesh.done(await mesh.unload(mesh.models[tenant], tenant=f"tenant-{tenant}"))


async def test_a_poison_datum_leaves_no_trace_in_real_windows_FAIL_13_GAP_04_OPT_14(
    valkey: ValkeyProcess, redis_client: object, tmp_path: Path
) -> None:
    """Bitwise against a run of the same companies without it, within tolerance against one undivided pass."""
    model = build(tmp_path / "tiny-qwen3")
    spared = [n for n in range(TENANTS) if n != GUILTY]
    async with real_trainer_mesh(valkey.url, tmp_path / "one", model, micro_batch_tokens=64) as mesh:
        await opened(mesh, list(range(TENANTS)))
        before = len(mesh.noted())  # what the trainer ran to measure its memory
        requests = await sent(mesh, [list(range(TENANTS))], poison=GUILTY)
        assert "internal error" in (await mesh.failed(requests[GUILTY])).message
        passes = mesh.noted()[before + 1 :]
        failed = [(24, "failed"), (12, "failed"), (8, "failed"), (4, "failed")]
        assert sorted(passes) == sorted([*failed, (12, "done"), (4, "done"), (4, "done")])
        found = await outcomes(mesh, requests, spared)
        await closed(mesh, spared)

        await opened(mesh, spared)
        requests = await sent(mesh, [[0, 1, 2], [5], [4]])
        assert await outcomes(mesh, requests, spared) == found

        await closed(mesh, spared)

        await opened(mesh, spared)
        requests = await sent(mesh, [spared])
        whole = await outcomes(mesh, requests, spared)
        for tenant in spared:
            for mine, theirs in zip(found[tenant][:2], whole[tenant][:2], strict=True):
                gap = np.abs(np.frombuffer(mine, "<f4") - np.frombuffer(theirs, "<f4")).max()
                assert gap <= TOLERANCE
