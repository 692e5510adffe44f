"""Prefill on one sampler, decode on another: the caller cannot tell, and nothing waits in silence."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import (
    AdapterNotLoaded,
    Busy,
    CacheNotReady,
    DecodeInterrupted,
    InvalidInput,
    MissingResource,
    ServerError,
    TinkermeshError,
    Unavailable,
)
from services.scheduler.metrics import SCHEDULER
from services.scheduler.sampling import link
from services.scheduler.sampling.collecting import collected
from services.scheduler.sampling.legs import decode_seed
from tests.contract.scheduler.placing.conftest import LONG, TENANT, Place, asked, wanted
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import POOL
from tests.doubles.leg_sampler import LegSampler


async def pair(place: Place) -> tuple[LegSampler, LegSampler]:
    return await place.leg("prefill"), await place.leg("decode")


async def told(
    place: Place, request: pb.SampleStreamRequest, adapter: types.AdapterRef | None = None, *, at_once: bool = True
) -> list[pb.SampleChunk]:
    sequences = request.sample.body.num_samples
    async with place.placements.place(wanted(adapter, sequences, at_once=at_once), LONG) as generation:
        return [chunk async for chunk in generation.stream(request, LONG)]


def spoken(chunks: list[pb.SampleChunk], sequence: int = 0) -> tuple[types.SampledSequence, str]:
    """(tokens, logprobs, alternatives and end; text) of one sequence."""
    count = 1 + max(chunk.sequence for chunk in chunks)
    text = "".join(chunk.text for chunk in chunks if chunk.sequence == sequence)
    return collected(chunks, count).sequences[sequence], text


def prompt_of(number: int) -> bytes:
    return np.random.default_rng(number).integers(1, 500, 3 + number).astype("<i4").tobytes()


async def test_two_legs_say_what_one_sampler_says_PDR_02_PDR_14_PDR_15(place: Place) -> None:
    """Greedy: ids, logprobs, alternatives, text and end; among them characters and stop strings over the seam."""
    alone = Place(place.root)
    await alone.leg("both")
    prefill, decode = await pair(place)
    bodies: list[dict[str, Any]] = [
        {
            "prompt_tokens": prompt_of(number),
            "temperature": 0.0,
            "max_tokens": 1 + number % 9,
            "topk_sample_logprobs": 3,
        }
        for number in range(60)
    ]
    seams = 0
    for number, body in enumerate(bodies):
        request = asked(f"r{number}", **body)
        request.with_text = True
        whole = spoken(await told(alone, request))
        if number % 3 == 0 and len(whole[1]) > 1:
            request.sample.body.stop.strings.append(whole[1][:2])
            whole = spoken(await told(alone, request))
        assert spoken(await told(place, request)) == whole
        seams += len(whole[0].tokens) > 4
    assert seams > 30
    assert len(decode.asked) >= seams
    assert len(prefill.asked) == len(bodies)
    await alone.fleet.close()
    await alone.legs["both"].stop()


async def test_each_leg_is_asked_for_its_part_of_the_same_request_PDR_01_PDR_03_PDR_05_PDR_16(place: Place) -> None:
    """All but its part is as it was asked for: nothing forces the first token to be no end, as a minimum would."""
    prefill, decode = await pair(place)
    adapter = place.adapter()
    request = asked(max_tokens=7, temperature=0.7, top_p=0.9, top_k=5, seed=11, topk_sample_logprobs=2)
    request.sample.body.stop.disabled = True
    request.with_text = True
    chunks = await told(place, request, adapter)
    (first,), (rest,) = prefill.asked, decode.asked
    body = request.sample.body
    assert (first.sample.leg, rest.sample.leg) == (pb.LEG_PREFILL, pb.LEG_DECODE)
    for leg in (first, rest):
        assert leg.sample.adapter == adapter
        assert leg.sample.cache_salt == TENANT
        assert leg.with_text
        same = types.SampleBody()
        same.CopyFrom(body)
        for changed in ("prompt_tokens", "max_tokens", "seed"):
            setattr(same, changed, getattr(leg.sample.body, changed))
        assert leg.sample.body == same
    assert (first.sample.body.prompt_tokens, first.sample.body.max_tokens) == (body.prompt_tokens, 1)
    assert rest.sample.body.prompt_tokens == body.prompt_tokens + chunks[0].tokens
    assert (rest.sample.body.max_tokens, rest.seam_tokens, first.seam_tokens) == (6, 1, 0)
    assert (first.sample.body.seed, rest.sample.body.seed) == (11, decode_seed(11))
    assert [chunk.finish for chunk in chunks] == [""] * 6 + ["length"]


async def test_each_leg_tells_how_long_its_first_token_took(place: Place) -> None:
    def seen(leg: str) -> float:
        name = "tinkermesh_scheduler_leg_first_token_seconds_count"
        return SCHEDULER.registry.get_sample_value(name, {"leg": leg}) or 0.0

    await pair(place)
    before = {leg: seen(leg) for leg in ("whole", "prefill", "decode")}
    request = asked(max_tokens=3, sequences=2)
    request.sample.body.stop.disabled = True
    await told(place, request)
    assert {leg: seen(leg) - count for leg, count in before.items()} == {"whole": 0, "prefill": 1, "decode": 2}


async def test_several_sequences_share_one_pass_over_the_prompt_and_go_on_alone_SAMP_07(place: Place) -> None:
    prefill, decode = await pair(place)
    request = asked(sequences=4, max_tokens=5, seed=3)
    request.sample.body.stop.disabled = True
    chunks = await told(place, request)
    assert len(prefill.asked) == 1
    assert sorted(leg.sample.body.seed for leg in decode.asked) == sorted(decode_seed(3 + n) for n in range(4))
    assert [len(spoken(chunks, n)[0].tokens) for n in range(4)] == [20] * 4
    assert len({leg.sample.request_id for leg in decode.asked}) == 4


async def test_the_same_seed_says_the_same_again(place: Place) -> None:
    await pair(place)
    once, again = [spoken(await told(place, asked(f"r{n}", seed=5, max_tokens=6))) for n in range(2)]
    assert once == again
    assert spoken(await told(place, asked("r", seed=6, max_tokens=6))) != once


@pytest.mark.parametrize("seed", [0, 7, -1, (1 << 63) - 1])
def test_the_decode_leg_draws_from_numbers_of_its_own(seed: int) -> None:
    assert decode_seed(seed) != seed
    assert 0 <= decode_seed(seed) < 1 << 63
    assert decode_seed(seed) != decode_seed(seed + 1)


async def test_one_token_needs_no_decode_leg_PDR_04(place: Place) -> None:
    prefill, decode = await pair(place)
    (chunk,) = await told(place, asked(max_tokens=1))
    assert chunk.finish in ("length", "stop")
    assert [leg.sample.leg for leg in prefill.asked] == [pb.LEG_WHOLE]
    assert decode.asked == []


async def test_a_first_token_that_stops_needs_no_decode_leg_PDR_04(place: Place) -> None:
    prefill, decode = await pair(place)
    request = asked(temperature=0.0, max_tokens=8)
    first = spoken(await told(place, request))[0].tokens[:4]
    decode.asked.clear()
    request.sample.body.stop.token_ids.append(int.from_bytes(first, "little"))
    (chunk,) = await told(place, request)
    assert (chunk.tokens, chunk.finish) == (first, "stop")
    assert decode.asked == []
    assert len(prefill.asked) == 2


async def test_the_first_token_does_not_wait_for_the_decode_leg_PDR_01(place: Place) -> None:
    _, decode = await pair(place)
    held = decode.faults.add("hold_before", "sample.stream", times=0)
    request = asked(max_tokens=4)
    request.sample.body.stop.disabled = True
    async with place.placements.place(wanted(), LONG) as made, aclosing(made.stream(request, LONG)) as chunks:
        first = await anext(chunks)
        assert (len(first.tokens), first.finish) == (4, "")
        await eventually(lambda: decode.running)
        decode.faults.remove(held)
        assert [chunk.finish async for chunk in chunks] == ["", "", "length"]


async def test_a_transient_failure_begins_the_flow_anew_while_nothing_was_shown_PDR_08(place: Place) -> None:
    prefill, decode = await pair(place)
    decode.errors = [Unavailable("503")]
    request = asked(max_tokens=4, temperature=0.0)
    request.sample.body.stop.disabled = True
    chunks = await told(place, request, at_once=False)
    assert len(spoken(chunks)[0].tokens) == 16
    assert (len(prefill.asked), len(decode.asked)) == (2, 2)


@pytest.mark.parametrize("error", [Unavailable("503"), Busy("429"), ServerError("500")])
async def test_a_prefill_leg_that_fails_once_is_not_seen_PDR_08(place: Place, error: TinkermeshError) -> None:
    prefill, _ = await pair(place)
    prefill.errors = [error]
    assert await told(place, asked(max_tokens=4))
    assert len(prefill.asked) == 2


async def test_the_repeats_are_bounded_PDR_08(place: Place) -> None:
    prefill, decode = await pair(place)
    prefill.errors = [Unavailable("503")] * 5
    with pytest.raises(Unavailable, match="503"):
        await told(place, asked(max_tokens=4))
    assert (len(prefill.asked), len(decode.asked)) == (2, 0)
    assert await place.in_flight() == {"prefill": 0, "decode": 0}


async def test_a_refusal_is_passed_on_as_it_is_PDR_09(place: Place) -> None:
    prefill, decode = await pair(place)
    prefill.errors = [InvalidInput("top_k is 0")]
    with pytest.raises(InvalidInput, match="top_k is 0"):
        await told(place, asked(max_tokens=4))
    assert (len(prefill.asked), len(decode.asked)) == (1, 0)


async def test_blocks_that_are_not_there_yet_cost_a_repeat_and_not_the_sampler_PDR_17(place: Place) -> None:
    """A decode sampler that has not got the blocks in time says so; it is not taken for dead."""
    prefill, decode = await pair(place)
    decode.errors = [CacheNotReady("stage kv load: 3 blocks are not in the tier")]
    request = asked(max_tokens=4)
    request.sample.body.stop.disabled = True
    assert len(spoken(await told(place, request, at_once=False))[0].tokens) == 16
    assert len(prefill.asked) == 2
    decode.errors = [CacheNotReady("stage kv load: 3 blocks are not in the tier")] * 2
    with pytest.raises(CacheNotReady, match="stage kv load"):
        await told(place, request, at_once=False)
    assert all(one.usable for one in await place.fleet.links(POOL))


@pytest.mark.parametrize("after", [0, 2])
async def test_what_breaks_after_output_is_not_repeated_and_says_so_PDR_10(place: Place, after: int) -> None:
    prefill, decode = await pair(place)
    decode.break_after = after
    request = asked(max_tokens=8)
    request.sample.body.stop.disabled = True
    seen = []
    async with place.placements.place(wanted(), LONG) as generation:
        with pytest.raises(DecodeInterrupted, match="after output had been given: the engine died"):
            async for chunk in generation.stream(request, LONG):
                seen.append(chunk)
    assert len(seen) == 1 + after
    assert (len(prefill.asked), len(decode.asked)) == (1, 1)
    assert await place.in_flight() == {"prefill": 0, "decode": 0}


async def test_both_legs_have_the_adapter_before_anything_is_sent_SAMP_01_SAMP_04(place: Place) -> None:
    prefill, decode = await pair(place)
    adapter = place.adapter()
    await told(place, asked(max_tokens=4), adapter)
    assert (prefill.load_calls, decode.load_calls) == (1, 1)
    assert set(prefill.loaded) == set(decode.loaded) == {adapter.name}


async def test_an_adapter_on_one_leg_only_is_refused_at_once_naming_the_other_SAMP_02_SAMP_03(place: Place) -> None:
    prefill, decode = await pair(place)
    decode.load_errors = [MissingResource("there is no such directory")]
    with pytest.raises(MissingResource, match="stage 'load adapter': m@v1 on decode sampler decode: there is no"):
        await told(place, asked(max_tokens=4), place.adapter())
    assert set(prefill.loaded) == {"m@v1"}
    assert (prefill.asked, decode.asked) == ([], [])
    assert await place.in_flight() == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_adapter_that_was_evicted_meanwhile_is_loaded_once_more_SAMP_02_SAMP_04(
    place: Place, role: str
) -> None:
    await pair(place)
    place.legs[role].evictions = 1
    request = asked(max_tokens=4)
    request.sample.body.stop.disabled = True
    chunks = await told(place, request, place.adapter())
    assert len(spoken(chunks)[0].tokens) == 16
    assert place.legs[role].load_calls == 2


async def test_one_that_is_evicted_again_and_again_is_refused_with_the_remedy_SAMP_02(place: Place) -> None:
    prefill, decode = await pair(place)
    prefill.evictions = 2
    with pytest.raises(AdapterNotLoaded, match=r"m@v1 is not loaded on this prefill sampler.*Admin.LoadAdapter"):
        await told(place, asked(max_tokens=4), place.adapter())
    assert len(prefill.asked) == 2
    assert decode.asked == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "double 2"),
        ("model_fingerprint", "other"),
        ("block_size", 16),
        ("hash_algorithm", "xxhash"),
        ("hash_seed", "1"),
        ("dtype", "bfloat16"),
        ("tier", "elsewhere"),
        ("tier", ""),
    ],
)
async def test_samplers_that_do_not_match_are_no_pair_and_the_field_is_named(
    place: Place, field: str, value: str | int
) -> None:
    await place.leg("prefill")
    decode = await place.leg("decode", **{f"kv_{field}": value})
    with pytest.raises(Unavailable, match=f"decode: prefill: {field} differs.*prefill: decode: {field} differs"):
        await told(place, asked())
    assert decode.asked == []


async def test_a_sampler_of_both_roles_serves_while_no_pair_is_ready(place: Place) -> None:
    await place.leg("prefill")
    both = await place.leg("both")
    assert await told(place, asked())
    assert len(both.asked) == 1


async def test_without_its_partner_a_sampler_is_named(place: Place) -> None:
    await place.leg("decode")
    with pytest.raises(Unavailable, match="decode: there is no prefill sampler"):
        await told(place, asked())


async def test_a_drained_half_of_a_pair_is_named_when_nobody_else_is_there(place: Place) -> None:
    await pair(place)
    place.directory.drained = {"prefill"}
    with pytest.raises(Unavailable, match=r"takes requests \(prefill: drained\)"):
        async with place.placements.place(wanted(), 0.1):
            pass


async def test_the_prefill_sampler_is_free_while_its_sequence_is_decoded(place: Place) -> None:
    _, decode = await pair(place)
    decode.faults.add("hold_before", "sample.stream", times=0)
    request = asked(max_tokens=4)
    request.sample.body.stop.disabled = True
    async with place.placements.place(wanted(), LONG) as made, aclosing(made.stream(request, LONG)) as chunks:
        await anext(chunks)
        rest = asyncio.ensure_future(anext(chunks))

        async def prefill_is_free() -> bool:
            return await place.in_flight() == {"prefill": 0, "decode": 1}

        await eventually(prefill_is_free)
        decode.faults.rules.clear()
        await rest
    assert await place.in_flight() == {"prefill": 0, "decode": 0}


async def test_after_a_thousand_aborts_and_failures_of_two_legs_nothing_is_in_flight_PDR_12(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = await pair(place)
    monkeypatch.setattr(link, "SUSPECT_SECONDS", 0.0)
    placements, dice, adapter = place.placements, random.Random(11), place.adapter()
    outcomes: list[str] = []

    async def one(number: int) -> None:
        sampler = dice.choice([prefill, decode])
        sampler.errors = dice.choice([[], [], [Unavailable("away")], [InvalidInput("bad")], [ServerError("broken")]])
        sampler.break_after = dice.choice([None, None, 0, 1])
        sampler.evictions = dice.choice([0, 0, 1])
        place_of = wanted(adapter if number % 2 else None, dice.randint(1, 3), at_once=dice.random() < 0.5)
        request = asked(f"r{number}", place_of.sequences, max_tokens=dice.randint(1, 5))
        async with placements.place(place_of, LONG) as made, aclosing(made.stream(request, LONG)) as chunks:
            async for _ in chunks:
                if dice.random() < 0.2:
                    return

    async def aborted(number: int) -> None:
        task = asyncio.create_task(one(number))
        if dice.random() < 0.6:
            for _ in range(dice.randrange(200)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            await task
            outcomes.append("done")
        except asyncio.CancelledError:
            outcomes.append("cancelled")
        except TinkermeshError as error:
            outcomes.append(error.code)

    for start in range(0, 1000, 20):
        await asyncio.gather(*(aborted(start + number) for number in range(20)))
    assert len(outcomes) == 1000
    assert {"cancelled", "done", "invalid_input", "pd_decode_interrupted"} < set(outcomes)
    assert await place.in_flight() == {"prefill": 0, "decode": 0}
    links = await place.fleet.links(POOL)
    assert [one.load_now.in_flight for one in links] == [0, 0]
