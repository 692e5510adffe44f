"""Samples in a pool of prefill and decode samplers."""

from __future__ import annotations

import numpy as np
import pytest
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.sampling.legs import decode_seed
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import FrontMesh, Replica, base_sampler, result, sample_request, session
from tests.doubles import generation
from tests.doubles.eventually import eventually
from tests.doubles.fake_sampler import BASE_WEIGHTS, FakeSampler


async def pair(start_sampler: StartSampler) -> tuple[FakeSampler, FakeSampler]:
    prefill = await start_sampler(sampler_id="first", role="prefill")
    return prefill, await start_sampler(sampler_id="second", role="decode")


def legs(double: FakeSampler) -> list[str]:
    return [str(entry.get("leg")) for entry in double.journal.entries if entry["kind"] == "sample"]


async def test_a_sample_of_several_sequences_runs_in_two_legs_PDR_02_SAMP_07(
    replica: Replica, start_sampler: StartSampler
) -> None:
    prefill, decode = await pair(start_sampler)
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, n=3, tokens=6)
    body = request.command.sample
    body.seed, body.topk_sample_logprobs, body.stop.disabled = 5, 2, True
    reply = await replica.scheduler.Submit(request)
    sample = (await result(replica, reply.request_id)).sample
    assert (legs(prefill), legs(decode)) == (["LEG_PREFILL"], ["LEG_DECODE"] * 3)
    assert list(sample.sequences) == [in_two_legs(body, index) for index in range(3)]


def in_two_legs(body: types.SampleBody, index: int) -> types.SampledSequence:
    """What the double's arithmetic makes of each leg, joined by hand."""
    first, rest = types.SampleBody(), types.SampleBody()
    first.CopyFrom(body)
    first.max_tokens = 1
    one = generation.sequence(BASE_WEIGHTS, first, body.seed, index)
    rest.CopyFrom(body)
    rest.max_tokens, rest.prompt_tokens = body.max_tokens - 1, body.prompt_tokens + one.tokens
    other = generation.sequence(BASE_WEIGHTS, rest, decode_seed(body.seed + index), 0)
    return types.SampledSequence(
        tokens=one.tokens + other.tokens,
        logprobs=one.logprobs + other.logprobs,
        stopped=other.stopped,
        topk=types.TopkTable(
            token_ids=one.topk.token_ids + other.topk.token_ids,
            logprobs=one.topk.logprobs + other.topk.logprobs,
            k=2,
            length=body.max_tokens,
        ),
    )


@pytest.mark.parametrize("field", ["prompt_logprobs", "topk_prompt_logprobs"])
async def test_what_is_asked_about_the_prompt_is_answered_by_who_computes_it(
    replica: Replica, start_sampler: StartSampler, field: str
) -> None:
    prefill, decode = await pair(start_sampler)
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, tokens=4)
    setattr(request.command.sample, field, 1)
    reply = await replica.scheduler.Submit(request)
    sample = (await result(replica, reply.request_id)).sample
    scores = sample.prompt_logprobs or sample.topk_prompt_logprobs.logprobs
    assert len(np.frombuffer(scores, "<f4")) == 3
    assert (legs(prefill), legs(decode)) == (["None"], [])


async def test_a_decode_leg_that_breaks_is_repeated_unseen_with_its_prefill_leg_PDR_08(
    replica: Replica, start_sampler: StartSampler
) -> None:
    prefill, decode = await pair(start_sampler)
    decode.faults.add("fail", "sample.stream", times=1)
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, tokens=5)
    request.command.sample.stop.disabled = True
    reply = await replica.scheduler.Submit(request)
    (sequence,) = (await result(replica, reply.request_id, seconds=30)).sample.sequences
    assert len(sequence.tokens) == 20
    assert (legs(prefill), legs(decode)) == (["LEG_PREFILL"] * 2, ["LEG_DECODE"])


async def test_samples_do_not_wait_for_ever_for_a_partner_that_does_not_come_SAMP_06(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replica = await mesh.replica(sampler_wait_seconds=1.0)
    await start_sampler(sampler_id="first", role="prefill")
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    failure = (await result(replica, reply.request_id, seconds=30)).failure
    assert failure.category == types.FAILURE_CATEGORY_SERVER
    assert "(first: there is no decode sampler)" in failure.message


async def test_a_cancelled_sample_ends_at_both_samplers(mesh: FrontMesh, start_sampler: StartSampler) -> None:
    replica = await mesh.replica()
    prefill, decode = await pair(start_sampler)
    held = decode.faults.add("hold_before", "sample.stream", times=0)
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, tokens=5)
    request.command.sample.stop.disabled = True
    reply = await replica.scheduler.Submit(request)
    await eventually(lambda: decode.running)
    await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=request.tenant_id, request_id=reply.request_id))
    assert (await result(replica, reply.request_id)).failure.message == "cancelled"
    await eventually(lambda: not decode.running and not prefill.running)
    decode.faults.remove(held)
