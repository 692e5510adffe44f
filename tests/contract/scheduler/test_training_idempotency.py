"""A retry finds what its key made; nothing runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Forbidden, Gone, InvalidInput, KeyConflict, ModelClosed, TinkermeshError, UnknownId
from services.common.ids import key_hash, parse_request_id
from services.scheduler.store import keys
from tests.contract.scheduler.requests import batch_request, create_request, new_session, step_request
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.journal import datum_counts
from tests.doubles.valkey import ValkeyProcess


async def row(mesh: Mesh, request_id: str) -> dict[str, bytes]:
    parsed = parse_request_id(request_id)
    found = await cast("Any", mesh.redis.hgetall(keys.req(parsed.pool, parsed.key)))
    return {name.decode(): value for name, value in found.items()}


async def test_twenty_concurrent_creates_take_one_slot_IDEM_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, replicas=3) as mesh:
        session = new_session()
        replies = await asyncio.gather(
            *(mesh.submit(create_request(session), replica=number % 3) for number in range(20))
        )
        assert len(set(replies)) == 1
        await mesh.done(replies[0])
        assert await mesh.create(session) == replies[0]
        assert Counter((await mesh.slots()).values())[""] == 3
        assert mesh.kinds() == ["init"]


async def test_a_create_retry_after_its_failure_answers_the_same_IDEM_02(mesh: Mesh) -> None:
    mesh.trainer.faults.add("fail", "init")
    session = new_session()
    request = await mesh.create(session)
    assert "injected" in (await mesh.failed(request)).message
    assert await mesh.create(session) == request


async def test_a_batch_sent_five_times_accumulates_once_IDEM_03(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    hold = mesh.trainer.faults.add("hold_before", "pass")
    sent = [await mesh.batch(model, 1, [3, 4]) for _ in range(2)]

    async def running() -> bool:
        return bool(mesh.trainer.book.running_unit)

    await mesh.until(running)
    sent.append(await mesh.batch(model, 1, [3, 4]))
    mesh.trainer.faults.remove(hold)
    await mesh.done(sent[0])
    sent += [await mesh.batch(model, 1, [3, 4]), await mesh.batch(model, 1, [3, 4])]
    metrics = (await mesh.done(await mesh.step(model, 2))).optim_step.metrics
    assert len(set(sent)) == 1
    assert metrics["window_datums"] == 2
    assert set(datum_counts(mesh.trainer.journal.entries).values()) == {1}


async def test_an_expired_result_answers_a_terminal_failure_and_is_not_run_again_IDEM_05_IDEM_06(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    first = await mesh.batch(model, 1)
    await mesh.done(first)
    key = parse_request_id(first)
    await cast("Any", mesh.redis.hset(keys.req(key.pool, key.key), "expires_ms", 1))
    with pytest.raises(Gone):
        await mesh.results.whole(first, "tenant-a")
    second = await mesh.batch(model, 1)
    assert second != first
    assert "expired after retention" in (await mesh.failed(second)).message
    assert await mesh.batch(model, 1) == second
    assert len(mesh.passes()) == 1


async def test_the_row_stays_when_the_result_is_swept_IDEM_06(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, retention_seconds=0.2) as mesh:
        model = await mesh.opened(new_session())
        request = await mesh.batch(model, 1)

        async def swept() -> bool:
            fields = await row(mesh, request)
            return fields["state"] == b"done" and not await mesh.redis.exists(f"tm:{{p:double}}:out:{request[7:39]}")

        await mesh.until(swept)
        fields = await row(mesh, request)
        assert fields["request_id"].decode() == request
        assert await mesh.redis.ttl(keys.req("double", parse_request_id(request).key)) == -1


async def test_sequence_ids_keep_every_digit_of_an_int64_IDEM_08(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    big = 9_007_199_254_740_993
    left, right = await mesh.batch(model, big), await mesh.batch(model, big + 1)
    assert left != right
    assert (await row(mesh, left))["seq"] == b"9007199254740993"
    assert (await row(mesh, right))["seq"] == b"9007199254740994"
    assert await mesh.batch(model, big) == left


@pytest.mark.parametrize("seq", [0, 2**63])
async def test_a_sequence_id_outside_its_range_is_refused_IDEM_07(mesh: Mesh, seq: int) -> None:
    model = await mesh.opened(new_session())
    with pytest.raises(InvalidInput, match="seq_id"):
        await mesh.submit(pb.SubmitRequest(tenant_id="tenant-a", model=pb.ModelKey(model_id=model, seq_id=seq)))


async def test_another_payload_under_a_used_key_is_refused_IDEM_09(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    first = await mesh.batch(model, 1, [3])
    with pytest.raises(KeyConflict, match="already used with a different request"):
        await mesh.batch(model, 1, [4])
    assert (await mesh.done(first)).batch.lengths == [3]


async def test_claim_and_enqueue_are_one_step_IDEM_10(mesh: Mesh) -> None:
    """A payload whose upload is gone leaves neither a key nor a command; the retry completes."""
    model = await mesh.opened(new_session())
    admission = cast("Any", mesh.replicas[0].training.admission)
    prepare, lost = admission._payloads.prepare, True

    async def losing(pool: str, key: str, payload: bytes) -> Any:
        pending = await prepare(pool, key, payload)
        return pending._replace(segments={}) if lost else pending

    admission._payloads.prepare = losing
    with pytest.raises(TinkermeshError, match="expired before it was admitted"):
        await mesh.batch(model, 1)
    assert await mesh.redis.hlen(keys.queue("double", model)) == 0
    assert not await mesh.redis.exists(keys.req("double", key_hash("train", model, 1)))
    lost = False
    await mesh.done(await mesh.batch(model, 1))


async def test_a_retry_after_the_model_closed_finds_its_request_IDEM_11(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    request = await mesh.batch(model, 1)
    await mesh.done(request)
    await mesh.done(await mesh.unload(model))
    assert await mesh.batch(model, 1) == request
    with pytest.raises(ModelClosed, match="unloaded by its client"):
        await mesh.batch(model, 2)


async def test_a_create_waits_for_a_slot_and_keeps_its_ids_IDEM_12(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1) as mesh:
        first, session = await mesh.opened(new_session()), new_session()
        waiting = await mesh.create(session)
        assert await mesh.create(session) == waiting
        early = await mesh.batch(f"{session}:train:0", 1)
        assert await mesh.state(waiting) == "queued"
        book = mesh.replicas[0].training.models
        assert await book.queue_state("double", f"{session}:train:0", 0) == (
            "paused_capacity",
            "every adapter slot is taken: the model waits for a free one",
        )
        await mesh.unload(first)
        await mesh.done(waiting)
        await mesh.done(early)


async def test_unknown_and_foreign_models_are_refused_before_anything_else(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    with pytest.raises(Forbidden):
        await mesh.batch(model, 1, tenant="tenant-b")
    with pytest.raises(Forbidden):
        await mesh.unload(model, tenant="tenant-b")
    with pytest.raises(UnknownId, match="create the model first"):
        await mesh.batch(f"{new_session()}:train:0", 1)
    with pytest.raises(Forbidden):
        await mesh.submit(create_request(model.split(":")[0], tenant="tenant-b"))


async def test_a_lost_reply_does_not_run_the_unit_again_IDEM_14(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("drop_reply", "pass")
    await mesh.done(await mesh.batch(model, 1, [5, 6]))
    metrics = (await mesh.done(await mesh.step(model, 2))).optim_step.metrics
    assert metrics["window_datums"] == 2
    assert len(mesh.passes()) == 1


async def test_concurrent_copies_of_every_post_have_one_effect(mesh: Mesh) -> None:
    session = new_session()
    model = f"{session}:train:0"
    await mesh.create(session)

    async def five(make: Any) -> set[str]:
        return set(await asyncio.gather(*(make() for _ in range(5))))

    batches = await five(lambda: mesh.submit(*batch_request(model, 1, [4])))
    steps = await five(lambda: mesh.submit(step_request(model, 2)))
    saves = await five(lambda: mesh.save(model, 3))
    unloads = await five(lambda: mesh.unload(model))
    assert [len(ids) for ids in (batches, steps, saves, unloads)] == [1, 1, 1, 1]
    await mesh.done(unloads.pop())
    assert mesh.kinds() == ["init", "pass", "optim", "save", "unload"]
