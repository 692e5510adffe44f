"""Recorded sequences, from the sample that leaves them to the datum that reads them (stable_reinforce)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import trainer_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, decode
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    POOL,
    FrontMesh,
    base_sampler,
    command,
    create_request,
    result,
    sample_request,
    session,
)
from tests.contract.scheduler.front.recorded import PROMPT, Client, Recorded, lesson
from tests.doubles import generation
from tests.doubles.fake_sampler import BASE_WEIGHTS
from tests.doubles.unit_runner import UnitRunner

DAY_MS = 86_400_000


@pytest.fixture
async def client(
    mesh: FrontMesh, start_sampler: StartSampler, start_trainer: StartTrainer, monkeypatch: pytest.MonkeyPatch
) -> Client:
    replica = await mesh.replica()
    trainer, sampler = await start_trainer(), await start_sampler()
    seen: list[Datum] = []
    run = UnitRunner._pass

    def watched(self: UnitRunner, work: trainer_pb2.PassWork, payload: bytes, due: Any) -> Any:
        lengths = [n for item in work.items for n in item.lengths]
        seen.extend(decode(payload, lengths, [1] * len(lengths), list(work.fields)))
        return run(self, work, payload, due)

    monkeypatch.setattr(UnitRunner, "_pass", watched)
    session_id = await session(replica)
    created = await replica.scheduler.Submit(create_request(session_id))
    await result(replica, created.request_id)
    return Client(replica, trainer, sampler, created.model_id, await base_sampler(replica, session_id), seen)


async def test_trainer_gets_the_samplers_own_logprobs_where_tokens_were_sampled(client: Client) -> None:
    (one,) = await client.sample(0)
    datum, spans = lesson(one)
    _, outcome = await client.train([datum], [spans])
    (got,) = client.seen
    assert np.array_equal(got.tokens, datum.tokens)
    assert np.isnan(got.fields["logprobs"][:2]).all()
    assert np.array_equal(got.fields["logprobs"][2:, 0], one.logprobs)
    assert np.array_equal(got.fields["raw_logprobs"], got.fields["logprobs"], equal_nan=True)
    assert np.array_equal(got.fields["advantages"], datum.fields["advantages"])
    metrics = dict(outcome.batch.metrics)
    assert metrics["tinkermesh/truncated-is+k2:sum"] == metrics["loss:sum"] == outcome.batch.loss_sum
    assert all(name.count(":") == 1 for name in metrics)


async def test_sampled_elsewhere_than_at_temperature_one_the_untempered_score_is_recorded_too_ADD_07(
    client: Client,
) -> None:
    for seq, change in enumerate(({"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9})):
        first, second = await client.sample(seq, n=2, **change)
        lessons = [lesson(one) for one in (first, second)]
        client.seen.clear()
        await client.train([d for d, _ in lessons], [s for _, s in lessons])
        for one, got in zip((first, second), client.seen, strict=True):
            whole = np.concatenate((PROMPT, one.tokens))
            raw = generation.prompt_logprobs(BASE_WEIGHTS, whole)[len(PROMPT) :]
            assert np.array_equal(got.fields["logprobs"][2:, 0], one.logprobs)
            assert np.array_equal(got.fields["raw_logprobs"][2:, 0], raw)
            assert not np.array_equal(raw, one.logprobs)


async def test_two_turns_read_two_sequences_and_a_part_of_one(client: Client) -> None:
    (first,), (second,) = await client.sample(0), await client.sample(1)
    tokens = np.concatenate((PROMPT, first.tokens, [9, 9], second.tokens[:3])).astype("<i4")
    spans = [first.span(0, 3, sampled=False), first.span(), second.span(0, 2, sampled=False), second.span(0, 3)]
    datum = Datum(tokens, tokens[:, None], {"advantages": np.zeros((len(tokens), 1), "<f4")})
    await client.train([datum], [types.DatumProvenance(model_input=spans, targets=spans)])
    nothing = np.full(3, np.nan, "<f4")
    expected = np.concatenate((nothing, first.logprobs, nothing[:2], second.logprobs[:3]))
    assert np.array_equal(client.seen[0].fields["logprobs"][:, 0], expected, equal_nan=True)


async def test_sequences_that_cannot_be_used_are_refused_saying_which_and_why(
    client: Client, redis_client: Redis
) -> None:
    (recorded,), (plain,) = await client.sample(0), await client.sample(1, record=False)
    good, spans = lesson(recorded)

    def renamed(name: str) -> types.DatumProvenance:
        changed = types.DatumProvenance.FromString(spans.SerializeToString())
        for span in (*changed.model_input, *changed.targets):
            span.sequence_id = name
        return changed

    text = await client.refused([good, good], [spans, renamed(plain.sequence_id)])
    assert text == (
        f"datum 1: sequence_id {plain.sequence_id} was not recorded: sample it with record_stability_info=true"
    )
    unknown = f"{client.sampling_session}.77.0"
    assert "77.0 is not known to this mesh" in await client.refused([good], [renamed(unknown)])
    beyond = f"{client.sampling_session}.0.1"
    assert "0.1 is not known to this mesh" in await client.refused([good], [renamed(beyond)])
    assert "'nonsense' is not one of this mesh" in await client.refused([good], [renamed("nonsense")])
    elsewhere = recorded.sequence_id.replace(f":{POOL}.", ":other.")
    assert "another base model (pool other)" in await client.refused([good], [renamed(elsewhere)])
    await end_in(redis_client, 0)
    assert "has expired: a record is kept for a limited time" in await client.refused([good], [spans])


async def left_ms(redis_client: Redis) -> float:
    """How long the only record still lives."""
    ((_, ends),) = await redis_client.zrange(keys.records(POOL), 0, -1, withscores=True)
    seconds, micros = await redis_client.time()
    return float(ends) - seconds * 1000 - micros / 1000


async def end_in(redis_client: Redis, milliseconds: float) -> None:
    ((member, _),) = await redis_client.zrange(keys.records(POOL), 0, -1, withscores=True)
    seconds, _ = await redis_client.time()
    await redis_client.zadd(keys.records(POOL), {member: seconds * 1000 + milliseconds})


async def _request_key(redis_client: Redis) -> str:
    """Of the only recorded sample."""
    (name,) = [name.decode() async for name in redis_client.scan_iter("*:record:*")]
    return str(name.split(":")[-2])


async def test_tokens_must_be_those_that_were_sampled(client: Client) -> None:
    (one,) = await client.sample(0)
    datum, spans = lesson(one)
    wrong = datum.targets.copy()
    wrong[4, 0] ^= 1
    text = await client.refused([Datum(datum.tokens, wrong, datum.fields)], [spans])
    assert text == (
        f"datum 0, position 4: target_tokens has {wrong[4, 0]}, sequence_id {one.sequence_id} sampled "
        f"{datum.targets[4, 0]} there"
    )
    tokens = datum.tokens.copy()
    tokens[-1] ^= 1
    text = await client.refused([Datum(tokens, datum.targets, datum.fields)], [spans])
    assert "position 6: model_input has" in text
    spans.targets[1].offset = 1
    assert "target_tokens: sequence_id" in await client.refused([datum], [spans])
    spans.targets[1].offset, spans.targets[1].length = 0, 4
    assert "cover 6 positions of 7" in await client.refused([datum], [spans])


async def test_another_tenants_sequence_is_refused_SEC_05(client: Client, redis_client: Redis) -> None:
    session_id = await session(client.replica, BOB)
    theirs = await base_sampler(client.replica, session_id, tenant=BOB)
    for record in (True, False):
        request = sample_request(theirs, int(record), tenant=BOB)
        request.command.sample.record_stability_info = record
        reply = await client.replica.scheduler.Submit(request)
        (sequence,) = (await result(client.replica, reply.request_id, BOB)).sample.sequences
        tokens = np.frombuffer(sequence.tokens, "<i4")
        one = Recorded(reply.sample_sequence_ids[0], tokens, np.frombuffer(sequence.logprobs, "<f4"))
        datum, spans = lesson(one)
        if record:
            await end_in(redis_client, 60_000)
        assert "belongs to another tenant" in await client.refused([datum], [spans])
    assert await left_ms(redis_client) < 61_000, "another tenant's use renews nothing"


async def test_every_use_renews_the_record_and_a_retry_needs_none(client: Client, redis_client: Redis) -> None:
    (one,) = await client.sample(0)
    assert DAY_MS - 60_000 < await left_ms(redis_client) <= DAY_MS
    await end_in(redis_client, 60_000)
    datum, spans = lesson(one)
    request_id, outcome = await client.train([datum], [spans])
    assert outcome.HasField("batch")
    assert await left_ms(redis_client) > DAY_MS - 60_000

    await end_in(redis_client, 0)
    again = await client.replica.scheduler.Submit(client.request([datum], [spans], client.seq))
    assert again.request_id == request_id
    assert await result(client.replica, request_id) == outcome
    assert len(client.seen) == 1


async def test_a_command_accepted_before_its_record_expired_still_runs_on_another_leader(
    mesh: FrontMesh, client: Client, redis_client: Redis
) -> None:
    """What was resolved lies in the payload: no later step asks for the record."""
    (one,) = await client.sample(0)
    datum, spans = lesson(one)
    held = client.request([datum], [spans], 2)  # its predecessor is missing
    reply = await client.replica.scheduler.Submit(held)
    await redis_client.delete(keys.record(POOL, await _request_key(redis_client), 0))
    other = await mesh.replica()
    await client.replica.stop()
    mesh.replicas.remove(client.replica)
    client.replica = other
    first = command(client.model_id, 1, types.Command(optim_step=types.OptimStepBody(adam=types.AdamParams(eps=1.0))))
    await other.scheduler.Submit(first)
    assert (await result(other, reply.request_id, seconds=30.0)).HasField("batch")
    assert np.array_equal(client.seen[0].fields["logprobs"][2:, 0], one.logprobs)


async def test_the_record_belongs_to_the_settlement_that_won_FUT_01(
    client: Client, redis_client: Redis, functions: Functions
) -> None:
    sequences = SequenceStore(redis_client, Functions(redis_client), 60_000)
    store = SamplingStore(redis_client, functions, sequences)
    (one,) = await client.sample(0)
    key = await _request_key(redis_client)
    late = types.SequenceRecord(tenant_id=ALICE, tokens=b"late", logprobs=b"late")
    won, _ = await store.settle(POOL, key, types.Result(sample=types.SampleResult()), 1000, [late])
    assert not won
    kept = types.SequenceRecord.FromString(await redis_client.get(keys.record(POOL, key, 0)) or b"")
    assert kept.tokens == one.tokens.tobytes()
    assert kept.tenant_id == ALICE


async def test_failed_and_cancelled_samples_leave_no_record(client: Client, redis_client: Redis) -> None:
    request = sample_request(client.sampling_session, 0)
    request.command.sample.record_stability_info = True
    request.command.rejected = "max_tokens: too large"
    reply = await client.replica.scheduler.Submit(request)
    assert (await result(client.replica, reply.request_id)).HasField("failure")
    assert [name async for name in redis_client.scan_iter("*:record*")] == []
