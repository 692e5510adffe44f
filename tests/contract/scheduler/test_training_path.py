"""Commands through admission, Redis, the core, a real gRPC trainer double, and back."""

from __future__ import annotations

from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh


async def test_a_model_trains_and_saves_CKPT_13(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    batch, step = await mesh.batch(model, 1, [2, 9, 4]), await mesh.step(model, 2)
    save = await mesh.save(model, 3)
    result = (await mesh.done(batch)).batch
    assert list(result.lengths) == [2, 9, 4]
    assert len(result.logprobs) == 4 * 15
    assert result.metrics["loss:sum"] == sum(result.datum_losses)
    assert "grad_norm" in (await mesh.done(step)).optim_step.metrics
    assert (await mesh.done(save)).save.path == f"tinker://{model}/weights/checkpoint-000003"


async def test_model_book_describes_a_model_through_its_life(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    book = mesh.replicas[0].training.models
    info = await book.describe(model, "tenant-a")
    assert (info.state, info.layout.rank, info.facts.pool) == ("open", 8, "double")
    await mesh.done(await mesh.unload(model))
    info = await book.describe(model, "tenant-a")
    assert (info.state, info.close_reason) == ("closed", "model was unloaded by its client")


async def test_a_payload_above_the_redis_limit_goes_through_a_file_of_the_store_FUT_06(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.replicas[0].training.admission._payloads._limit = 1000  # type: ignore[attr-defined]
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    batch = await mesh.batch(model, 1, [300, 200])
    (file,) = (mesh.root / "payloads").glob("blob-*")
    mesh.trainer.faults.remove(hold)
    assert (await mesh.done(batch)).batch.lengths == [300, 200]
    scored = await mesh.batch(model, 2, [300, 200], backward=False)
    await mesh.done(scored)  # a score changes nothing: nobody will replay it
    await mesh.until(lambda: list((mesh.root / "payloads").glob("blob-*")) == [file])
    await mesh.done(await mesh.unload(model))
    await mesh.until(lambda: not file.exists())


async def test_counters_tell_how_many_passes_tenants_shared(mesh: Mesh) -> None:
    ours, theirs = await mesh.opened(new_session()), await mesh.opened(new_session(), tenant="tenant-b")
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    first = await mesh.batch(ours, 1)
    await mesh.until(lambda: running(mesh))
    pair = [await mesh.batch(ours, 2, [2, 2]), await mesh.batch(theirs, 1, [3], tenant="tenant-b")]
    mesh.trainer.faults.remove(hold)
    for request in (first, *pair):
        await mesh.done(request)
    counters = await mesh.redis.hgetall("tm:{p:double}:counters")
    assert counters[b"shared_units_total"] == b"1"
    assert counters[b"datums_total"] == b"4"


async def running(mesh: Mesh) -> bool:
    return mesh.trainer.book.running_unit != ""
