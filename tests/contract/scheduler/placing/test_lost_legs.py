"""A queued sample that finds one of its two samplers away: it knows which, and leaves that one alone for a moment."""

from __future__ import annotations

import asyncio

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, Unavailable
from services.scheduler.sampling.flight import Flight
from services.scheduler.sampling.outcome import Verdict
from services.scheduler.sampling.serving import Retry, attempt
from services.scheduler.sampling.spot import Spot
from services.scheduler.sampling.waiting import Waiting
from services.scheduler.store.sampling import WaitingSample
from tests.contract.scheduler.placing.conftest import TENANT, Place, asked
from tests.doubles.fake_trainer import POOL


async def tried(place: Place, adapter: types.AdapterRef | None, **body: int) -> tuple[Retry, dict[str, bool]]:
    """Why one attempt on the pair has to be repeated; sampler id -> whether it is sent anything now."""
    links = {link.sampler_id: link for link in await place.fleet.links(POOL)}
    sample = WaitingSample("k", 1, "r", TENANT, adapter, "", 0, 1)
    flight = Flight(Spot(links["decode"], links["prefill"]), 1)
    waiting = Waiting(sample, asyncio.get_running_loop().time())
    outcome = await attempt(waiting, flight, asked(**body).sample.body, place.limits)
    flight.land()
    assert isinstance(outcome, Retry)
    return outcome, {name: link.usable for name, link in links.items()}


@pytest.mark.parametrize(("away", "other"), [("prefill", "decode"), ("decode", "prefill")])
async def test_who_is_away_when_the_adapter_is_loaded_is_left_alone_PDR_08(place: Place, away: str, other: str) -> None:
    """Else the sample would come back to it at once, again and again until its registration ends."""
    legs = {role: await place.leg(role) for role in ("prefill", "decode")}
    legs[away].load_errors = [Unavailable("it starts")]
    outcome, usable = await tried(place, place.adapter())
    assert (outcome.verdict, outcome.stage) == (Verdict.ELSEWHERE, "load adapter")
    assert usable == {away: False, other: True}


async def test_who_has_no_room_for_the_adapter_is_not_taken_for_away(place: Place) -> None:
    legs = {role: await place.leg(role) for role in ("prefill", "decode")}
    legs["decode"].load_errors = [Busy("every place is in use")]
    outcome, usable = await tried(place, place.adapter())
    assert outcome.verdict is Verdict.LATER
    assert usable == {"prefill": True, "decode": True}


async def test_a_prefill_sampler_that_was_to_answer_alone_is_left_alone_PDR_08(place: Place) -> None:
    for role in ("prefill", "decode"):
        await place.leg(role)
    await place.legs["prefill"].stop()
    outcome, usable = await tried(place, None, max_tokens=1)
    assert (outcome.verdict, outcome.stage) == (Verdict.ELSEWHERE, "sample")
    assert usable == {"prefill": False, "decode": True}
