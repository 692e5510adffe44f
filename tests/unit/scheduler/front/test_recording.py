"""What a recorded sample asks of its sampler besides the sample itself."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ServerError, UnknownId
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.recording import records
from services.scheduler.store.sequences import parse_sequence_id, sequence_id

SESSION = "39aa5eb2-e234-5a95-ab68-896e4cac8c45:sample:0:pool-a"


class Link:
    """Scores a prompt's token t as -t, its first one as NaN."""

    def __init__(self, max_context: int, *, cut: int = 0) -> None:
        self.max_context = max_context
        self.asked: list[pb.SampleRequest] = []
        self._cut = cut

    async def sample(self, request: pb.SampleRequest, seconds: float) -> types.SampleResult:
        self.asked.append(request)
        scores = -np.frombuffer(request.body.prompt_tokens, "<i4").astype("<f4")
        scores[0] = np.nan
        return types.SampleResult(prompt_logprobs=scores[self._cut :].tobytes())


def request(**changes: float) -> pb.SampleRequest:
    body = types.SampleBody(
        prompt_tokens=np.array([1, 2, 3], "<i4").tobytes(),
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        record_stability_info=True,
    )
    for name, value in changes.items():
        setattr(body, name, value)
    adapter = types.AdapterRef(name="m@1", path="p")
    return pb.SampleRequest(request_id="r", adapter=adapter, body=body, cache_salt="tenant-a")


def sampled(*tokens: int) -> types.SampledSequence:
    values = np.array(tokens, "<i4")
    return types.SampledSequence(tokens=values.tobytes(), logprobs=(-values / 8).astype("<f4").tobytes())


async def made(link: Link, asked: pb.SampleRequest, *sequences: types.SampledSequence) -> list[types.SequenceRecord]:
    return await records(cast("SamplerLink", link), asked, types.SampleResult(sequences=sequences), 5.0)


async def test_nothing_is_recorded_unless_asked() -> None:
    assert await made(Link(100), request(record_stability_info=False, temperature=0.5), sampled(7)) == []


async def test_the_models_own_distribution_needs_no_second_score() -> None:
    link = Link(100)
    (one,) = await made(link, request(), sampled(7, 8))
    assert (one.tenant_id, one.raw_logprobs, link.asked) == ("tenant-a", b"", [])
    assert one.logprobs == sampled(7, 8).logprobs


@pytest.mark.parametrize("change", [{"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}])
async def test_any_other_is_scored_untempered_on_the_same_adapter_ADD_07(change: dict[str, float]) -> None:
    link = Link(100)
    one, two = await made(link, request(**change), sampled(7, 8), sampled(9))
    assert np.frombuffer(one.raw_logprobs, "<f4").tolist() == [-7, -8]
    assert np.frombuffer(two.raw_logprobs, "<f4").tolist() == [-9]
    first, second = link.asked
    assert first.request_id != second.request_id
    assert (first.adapter.name, first.cache_salt) == ("m@1", "tenant-a")
    assert (first.body.temperature, first.body.prompt_logprobs, first.body.record_stability_info) == (1.0, True, False)


async def test_the_last_token_of_a_full_context_stays_unknown() -> None:
    (one,) = await made(Link(5), request(temperature=0.7), sampled(7, 8))
    scores = np.frombuffer(one.raw_logprobs, "<f4")
    assert scores[0] == -7
    assert np.isnan(scores[1])


async def test_a_sampler_that_scores_too_little_is_at_fault() -> None:
    with pytest.raises(ServerError, match="scored 16 bytes of 20"):
        await made(Link(100, cut=1), request(temperature=0.7), sampled(7, 8))


def test_a_sequence_id_is_found_again_by_its_parts() -> None:
    ref = parse_sequence_id(sequence_id(SESSION, 2**60 + 1, 3))
    assert (ref.pool, ref.number) == ("pool-a", 3)
    assert ref.key != parse_sequence_id(sequence_id(SESSION, 2**60, 3)).key


@pytest.mark.parametrize("end", ["", ".1", ".1.", ".-1.0", ".1.0.0", ".1.9999999", ".x.0", ".1.00", ".01.0", ".1.0\n"])
def test_anything_else_is_no_sequence_id(end: str) -> None:
    for text in (f"{SESSION}{end}", "a.1.0"):
        with pytest.raises(UnknownId):
            parse_sequence_id(text)
