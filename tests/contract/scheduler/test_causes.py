"""Recent failures of a tenant: as its client reads them, bounded, and one entry for what fails alike."""

from __future__ import annotations

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store import keys
from services.scheduler.store.causes import LONG, CauseReader
from tests.contract.scheduler.requests import TENANT, new_session
from tests.contract.scheduler.rig import Mesh
from tests.contract.scheduler.test_training_functions import MODEL, Bench, bench, submission
from tests.doubles.fake_trainer import POOL

__all__ = ["bench"]


async def test_a_failure_is_told_as_its_client_reads_it(mesh: Mesh) -> None:
    ours, theirs = await mesh.opened(new_session()), await mesh.opened(new_session(), tenant="tenant-b")
    mesh.trainer.faults.add("fail_user", "pass")
    request = await mesh.batch(ours, 1, backward=False)
    failure = await mesh.failed(request)
    await mesh.done(await mesh.batch(theirs, 1, tenant="tenant-b"))
    (cause,) = await CauseReader(mesh.redis).recent([POOL], TENANT, 50)
    assert (cause.request_id, cause.parent, cause.op) == (request, ours, "forward")
    assert cause.text == failure.message
    assert cause.user is (failure.category == types.FAILURE_CATEGORY_USER)
    assert cause.times == 1 and cause.unix_ms > 0
    assert await CauseReader(mesh.redis).recent([POOL], "tenant-b", 50) == []


async def test_what_fails_with_its_model_is_one_entry_that_counts(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    held = mesh.trainer.faults.add("hold_before", "pass", times=0)
    mesh.trainer.faults.add("fail", "pass")
    requests = [await mesh.batch(model, seq, [1200 + seq] * 4) for seq in range(1, 7)]
    mesh.trainer.faults.remove(held)
    for request in requests:
        await mesh.failed(request)
    causes = await CauseReader(mesh.redis).recent([POOL], TENANT, 50)
    assert sum(cause.times for cause in causes) == 6
    assert 1 <= len(causes) <= 2 and causes[0].times >= 4, causes


async def failing(bench: Bench, texts: list[str]) -> None:
    for number, text in enumerate(texts, start=3):
        await bench.store.submit("p", submission(f"k{number}", str(number), datums=1))
        await bench.store.refuse("p", bench.term, f"k{number}", text)


async def test_the_list_is_bounded_and_ends_by_itself(bench: Bench) -> None:
    await failing(bench, [f"cause {number}" for number in range(70)])
    causes = await CauseReader(bench.redis).recent(["p"], "tenant", 1000)
    assert [cause.text for cause in causes] == [f"cause {number}" for number in reversed(range(20, 70))]
    assert 0 < await bench.redis.pttl(keys.causes("p", "tenant")) <= 7 * 86_400_000


async def test_a_long_cause_is_left_to_its_request(bench: Bench, redis_client: Redis) -> None:
    await failing(bench, ["x" * 3000, "ü" * 900])
    newest, oldest = await CauseReader(redis_client).recent(["p"], "tenant", 50)
    assert (newest.text, oldest.text) == ("ü" * 900, LONG)
    assert newest.parent == MODEL


async def test_text_of_any_kind_comes_back_as_it_is(bench: Bench) -> None:
    text = '<script>alert("1")</script> \\ ü \t {"a": 1}'
    await failing(bench, [text])
    (cause,) = await CauseReader(bench.redis).recent(["p"], "tenant", 50)
    assert cause.text == text and cause.user
