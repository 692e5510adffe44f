"""Every generation gets a place with its adapter, in bounded time, and gives it back whatever happens."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import Busy, InvalidInput, MissingResource, ServerError, TinkermeshError, Unavailable
from services.scheduler.core.prefixes import starts_of
from services.scheduler.sampling import link, placing
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.routing import Request
from tests.contract.scheduler.placing.conftest import LONG, PROMPT, TENANT, Place, asked, wanted
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import POOL


async def generated(place: Place, adapter: object = None, sequences: int = 1, **body: object) -> list[pb.SampleChunk]:
    async with place.placements.place(wanted(adapter, sequences), LONG) as generation:  # type: ignore[arg-type]
        chunks = generation.stream(asked(sequences=sequences, **body), LONG)
        return [chunk async for chunk in chunks]


async def test_a_stream_comes_from_a_sampler_that_acknowledged_the_adapter_SAMP_04(place: Place) -> None:
    sampler, adapter = await place.sampler(), place.adapter()
    chunks = await generated(place, adapter, sequences=2)
    assert [(c.sequence, c.finish) for c in chunks] == [
        (0, ""),
        (1, ""),
        (0, ""),
        (1, ""),
        (0, "length"),
        (1, "length"),
    ]
    assert sampler.load_calls == 1
    (request,) = sampler.streams
    assert request.sample.adapter == adapter
    assert request.sample.cache_salt == TENANT
    assert sampler.aborted == []
    assert await place.in_flight() == {"a": 0}


async def test_nothing_is_sent_before_the_acknowledgement_SAMP_04(place: Place) -> None:
    sampler = await place.sampler()
    sampler.load_gate = asyncio.Event()
    work = asyncio.create_task(generated(place, place.adapter()))
    await eventually(lambda: sampler.load_calls)
    assert sampler.streams == []
    sampler.load_gate.set()
    assert len(await work) == 3


async def test_concurrent_first_uses_share_one_load_SAMP_01(place: Place) -> None:
    sampler, adapter = await place.sampler(), place.adapter()
    sampler.load_gate = asyncio.Event()
    work = [asyncio.create_task(generated(place, adapter)) for _ in range(100)]
    await eventually(lambda: sampler.load_calls)
    sampler.load_gate.set()
    await asyncio.gather(*work)
    assert sampler.load_calls == 1
    assert len(sampler.streams) == 100


@pytest.mark.parametrize(
    ("fault", "after", "text"),
    [("end", 0, "the stream was empty"), ("end", 3, "ended before sequence 0 was finished")],
)
async def test_a_stream_that_is_not_whole_is_no_success_SAMP_06_SAMP_08(
    place: Place, fault: str, after: int, text: str
) -> None:
    sampler = await place.sampler()
    sampler.fault, sampler.after = fault, after
    with pytest.raises(ServerError, match=text):
        await generated(place, sequences=2)
    assert await place.in_flight() == {"a": 0}


async def test_an_aborted_sequence_is_no_success_SAMP_08(place: Place) -> None:
    (await place.sampler()).finish = "abort"
    with pytest.raises(ServerError, match="was cut off: 'abort'"):
        await generated(place)


@pytest.mark.parametrize(("after", "stage"), [(0, "first token"), (2, "next token")])
async def test_a_sampler_that_hangs_is_left_with_the_stage_named_SAMP_06(place: Place, after: int, stage: str) -> None:
    sampler = await place.sampler()
    sampler.fault, sampler.after = "hang", after
    place.bound(first_token_seconds=0.2, next_token_seconds=0.2, flow_retries=0)
    if after:
        place.bound(first_token_seconds=LONG)
    with pytest.raises(Unavailable, match=f"sampler a: stage '{stage}': nothing came for 0.2 s"):
        await generated(place)
    await eventually(lambda: sampler.aborted == ["r"])


async def test_a_stream_past_its_bound_ends_and_names_the_stage_SAMP_06(place: Place) -> None:
    sampler = await place.sampler()
    sampler.fault = "hang"
    async with place.placements.place(wanted(), LONG) as generation:
        with pytest.raises(ServerError, match="sampler a: stage 'first token': the request was not finished in time"):
            async for _ in generation.stream(asked(), 0.3):
                pass
    await eventually(lambda: sampler.aborted == ["r"])


async def test_closing_the_stream_aborts_at_the_sampler(place: Place) -> None:
    sampler = await place.sampler()
    async with place.placements.place(wanted(), LONG) as made, aclosing(made.stream(asked(), LONG)) as chunks:
        await anext(chunks)
    await eventually(lambda: sampler.aborted == ["r"] and not sampler.open_streams)
    assert await place.in_flight() == {"a": 0}


async def test_without_a_sampler_the_answer_comes_at_once(place: Place) -> None:
    with pytest.raises(Unavailable, match="pool double has no live sampler"):
        await generated(place)


async def test_who_finds_no_room_is_told_so_in_time_SAMP_12(place: Place) -> None:
    await place.sampler(max_running=1)
    async with place.placements.place(wanted(sequences=3), LONG):
        with pytest.raises(Busy, match="stage 'place': no room for 1 sequences in time on a"):
            async with place.placements.place(wanted(), 0.1):
                pass


async def filled_by_samples(place: Place) -> SamplerLink:
    """A sampler as the queue of samples keeps it while they wait: full, at whichever replica."""
    await place.sampler(max_running=4)
    (one,) = await place.fleet.links(POOL)
    one.load_now.told(one.capacity, 0)
    return one


async def test_samples_that_fill_the_samplers_for_ever_do_not_shut_out_what_is_placed(place: Place) -> None:
    one = await filled_by_samples(place)
    assert place.router.choose(POOL, Request("", 1, starts_of(TENANT, PROMPT)), [one]) is None  # as the queue asks
    placements = place.placements
    async with placements.place(wanted(), LONG):
        with pytest.raises(Busy):
            async with placements.place(wanted(), 0.1):
                pass


async def test_batch_work_yields_to_samples_for_a_while_and_not_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled_by_samples(place)
    with pytest.raises(Busy):
        async with place.placements.place(wanted(batch=True), 0.1):
            pass
    monkeypatch.setattr(placing, "BATCH_PATIENCE_SECONDS", 0.05)
    async with place.placements.place(wanted(batch=True), LONG):
        pass


async def test_batch_work_that_waits_is_in_nobodys_way(place: Place) -> None:
    await filled_by_samples(place)
    placements = place.placements
    batch = asyncio.create_task(placements.place(wanted(batch=True), LONG).__aenter__())
    await asyncio.sleep(0)
    async with placements.place(wanted(), LONG):
        assert not batch.done()
    batch.cancel()


async def test_room_goes_to_those_who_wait_in_their_order(place: Place) -> None:
    await place.sampler(max_running=1)
    placements, order = place.placements, []

    async def wait(name: str, sequences: int) -> None:
        async with placements.place(wanted(sequences=sequences), LONG):
            order.append(name)

    async with placements.place(wanted(sequences=2), LONG):
        waiting = [asyncio.create_task(wait(name, count)) for name, count in (("large", 2), ("small", 1))]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["large", "small"]


async def test_an_adapter_that_cannot_be_loaded_is_refused_with_stage_and_sampler_SAMP_03(place: Place) -> None:
    sampler, adapter = await place.sampler(), place.adapter()
    sampler.load_error = MissingResource("its directory is not there")
    with pytest.raises(MissingResource, match=f"stage 'load adapter': {adapter.name} on sampler a: its directory"):
        await generated(place, adapter)
    assert sampler.streams == []
    assert await place.in_flight() == {"a": 0}


async def test_a_sampler_that_came_back_loads_again_before_it_is_used_SAMP_13(place: Place) -> None:
    first, adapter = await place.sampler("a"), place.adapter()
    await generated(place, adapter)
    again = await place.sampler("a")
    place.directory.registrations = [again.registration()]
    again.load_gate = asyncio.Event()
    work = asyncio.create_task(generated(place, adapter))
    await eventually(lambda: again.load_calls)
    assert again.streams == []
    again.load_gate.set()
    await work
    assert (len(first.streams), len(again.streams)) == (1, 1)


async def test_a_load_that_hangs_is_bounded_SAMP_06(place: Place) -> None:
    sampler = await place.sampler()
    sampler.load_gate = asyncio.Event()
    with pytest.raises(ServerError, match="stage 'load adapter': m@v1 on sampler a: it was not loaded in time"):
        async with place.placements.place(wanted(place.adapter()), 0.3):
            pass
    assert await place.in_flight() == {"a": 0}


async def test_a_sampler_that_is_away_is_passed_over(place: Place) -> None:
    away, here = await place.sampler("a"), await place.sampler("b")
    away.load_error = Unavailable("stopping")
    async with place.placements.place(wanted(place.adapter()), LONG) as generation:
        assert generation.sampler_ids == ("b",)
        assert await place.in_flight() == {"a": 0, "b": 1}
        assert len([chunk async for chunk in generation.stream(asked(), LONG)]) == 3
    assert (len(away.streams), len(here.streams)) == (0, 1)


async def test_a_drained_sampler_gets_nothing_until_it_is_admitted_again(place: Place) -> None:
    drained, other = await place.sampler("a"), await place.sampler("b")
    async with place.placements.place(wanted(), LONG) as running:
        assert running.sampler_ids == ("a",)
        place.directory.drained = {"a"}
        await generated(place)
        assert len([chunk async for chunk in running.stream(asked(), LONG)]) == 3  # what runs there ends there
    assert (len(drained.streams), len(other.streams)) == (1, 1)
    place.directory.drained = {"a", "b"}
    with pytest.raises(Unavailable, match=r"takes requests \(a: drained; b: drained\)"):
        async with place.placements.place(wanted(), 0.1):
            pass
    place.directory.drained = {"b"}
    await generated(place)
    assert (len(drained.streams), len(other.streams)) == (2, 1)


async def test_sequences_of_other_replicas_count_as_load(place: Place) -> None:
    busy, idle = await place.sampler("a"), await place.sampler("b")
    busy.described = (40, 5)
    links = {link.sampler_id: link for link in await place.fleet.links(POOL)}
    await eventually(lambda: links["a"].in_flight == 45 and idle.describes)
    await generated(place)
    assert (len(busy.streams), len(idle.streams)) == (0, 1)
    assert await place.in_flight() == {"a": 0, "b": 0}


async def test_ids_come_from_a_sampler_that_answers_JOB_10(place: Place) -> None:
    broken, _ = await place.sampler("a"), await place.sampler("b")
    broken.error = Unavailable("stopping")
    ids = await place.placements.tokenize(POOL, pb.TokenizeRequest(text="hé"), LONG)
    assert ids == b"\x68\0\0\0\xe9\0\0\0"


async def test_a_text_that_cannot_be_tokenized_is_the_callers_fault(place: Place) -> None:
    (await place.sampler()).error = InvalidInput("chat_json: no messages")
    with pytest.raises(InvalidInput, match="no messages"):
        await place.placements.tokenize(POOL, pb.TokenizeRequest(chat_json="{}"), LONG)


async def test_after_a_thousand_aborts_and_failures_nothing_is_in_flight_PDR_12(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled at any await, refused, broken off or left early: what was taken comes back, on both samplers."""
    for name in ("a", "b"):
        await place.sampler(name, max_running=2)
    place.bound(first_token_seconds=0.2, next_token_seconds=0.2)
    placements, dice, adapter = place.placements, random.Random(7), place.adapter()
    monkeypatch.setattr(link, "SUSPECT_SECONDS", 0.0)
    outcomes: list[str] = []

    async def one(number: int) -> None:
        sampler = dice.choice(place.samplers)
        sampler.fault, sampler.after = dice.choice(["", "", "hang", "end"]), dice.randrange(3)
        sampler.load_error = dice.choice([None, None, None, MissingResource("gone"), Unavailable("away")])
        place_of = wanted(adapter if number % 2 else None, dice.randint(1, 3))
        async with placements.place(place_of, LONG) as made, aclosing(made.stream(asked(f"r{number}"), LONG)) as chunks:
            async for _ in chunks:
                if dice.random() < 0.2:
                    return

    async def aborted(number: int) -> None:
        task = asyncio.create_task(one(number))
        if dice.random() < 0.7:
            for _ in range(dice.randrange(100)):
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
    assert {"cancelled", "done", "missing_resource", "server"} < set(outcomes)
    assert await place.in_flight() == {"a": 0, "b": 0}
    await eventually(lambda: not any(sampler.open_streams for sampler in place.samplers))
