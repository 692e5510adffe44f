"""How full passes are and how long work waits: what Admin.ListPools tells of a pool."""

from __future__ import annotations

from typing import cast

import pytest

from services.scheduler.admin_reports import packing_report
from services.scheduler.store.overview import Overview
from tests.contract.scheduler.rig import POOL, Mesh
from tests.contract.scheduler.test_training_packing import held, three


async def totals(mesh: Mesh) -> dict[str, str]:
    return dict(await Overview(mesh.redis).counters(POOL))


async def test_passes_tell_their_fill_their_tenants_and_what_waited_PACK_10(mesh: Mesh) -> None:
    a, b, _ = await three(mesh)
    before = packing_report(await totals(mesh), 0)
    async with held(mesh):
        sent = [await mesh.batch(model, 1, [3, 3], tenant=f"tenant-{name}") for name, model in (("a", a), ("b", b))]
    for request in sent:
        await mesh.done(request)
    after = packing_report(await totals(mesh), mesh.facts.unit_token_budget)
    assert after.passes_total - before.passes_total == 2, "the blocker's and the shared one"
    assert after.tenants_total - before.tenants_total == 3
    assert after.tokens_total - before.tokens_total == 2 + 4 * 4
    assert after.started_total - before.started_total == 4, "the blocker's create, and three batches"
    assert after.queue_wait_ms_total > before.queue_wait_ms_total
    assert after.fill_ratio == pytest.approx(after.tokens_total / (after.passes_total * mesh.facts.unit_token_budget))
    assert 1.0 < after.tenants_per_pass <= 2.0
    assert after.queue_wait_ms == pytest.approx(after.queue_wait_ms_total / after.started_total)


async def test_work_that_ran_again_alone_is_counted_PACK_10(mesh: Mesh) -> None:
    a, b, _ = await three(mesh)
    async with held(mesh):
        sent = [await mesh.batch(model, 1, tenant=f"tenant-{name}") for name, model in (("a", a), ("b", b))]
        mesh.trainer.faults.add("fail", "pass")
    for request in sent:
        await mesh.settled(request)
    assert packing_report(await totals(mesh), 0).solo_retries_total == 2


def test_a_pool_without_passes_divides_by_nothing() -> None:
    report = packing_report({}, 0)
    assert (report.fill_ratio, report.tenants_per_pass, cast("float", report.queue_wait_ms)) == (0.0, 0.0, 0.0)
