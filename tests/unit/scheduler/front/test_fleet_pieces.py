"""Token pieces asked of the samplers: any of them will do."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2

from services.common.errors import InvalidInput, Unavailable
from services.scheduler.generating.fleet_pieces import FleetPieces
from services.scheduler.sampling import fleet as fleets
from services.scheduler.sampling.link import SamplerLink

AWAY = (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: ipv4:10.1.2.3:50051")


class Stub:
    """Answers, or fails as a transport does with (code, details)."""

    def __init__(self, failure: tuple[grpc.StatusCode, str] | None) -> None:
        self.failure = failure
        self.asked = 0

    async def Pieces(self, request: pb.PiecesRequest, *, timeout: float) -> pb.PiecesReply:
        self.asked += 1
        if self.failure is not None:
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.failure[0], metadata, metadata, self.failure[1])
        return pb.PiecesReply(pieces=[b"a"])


class Fleet(fleets.Fleet):
    """Samplers a, b, …, one for each failure (None = it answers)."""

    def __init__(self, *failures: tuple[grpc.StatusCode, str] | None) -> None:
        super().__init__(cast("Any", None))
        self.stubs = [Stub(failure) for failure in failures]
        self.all: list[SamplerLink] = []
        for name, stub in zip("abc", self.stubs, strict=False):
            registration = scheduler_pb2.RegisterSamplerRequest(sampler_id=name, address="127.0.0.1:1")
            link = SamplerLink(registration, load_seconds=60.0)
            link._stub = cast("Any", stub)
            self.all.append(link)

    async def links(self, pool: str) -> list[SamplerLink]:
        return self.all

    async def close(self) -> None:
        for link in self.all:
            await link.close()


async def asked(fleet: Fleet) -> list[bytes]:
    try:
        return await FleetPieces(fleet).pieces("p", b"\1\0\0\0", 5.0)
    finally:
        await fleet.close()


async def test_where_one_is_away_another_is_asked_and_that_one_left_alone() -> None:
    fleet = Fleet(AWAY, None)
    assert await asked(fleet) == [b"a"]
    assert [link.usable for link in fleet.all] == [False, True]


async def test_when_none_answers_the_client_learns_no_address_of_the_mesh() -> None:
    with pytest.raises(Unavailable, match="stage 'pieces': no sampler of pool p answered: sampler a was lost") as told:
        await asked(Fleet(AWAY))
    assert "10.1.2.3" not in told.value.message


async def test_without_a_sampler_it_is_said_so() -> None:
    with pytest.raises(Unavailable, match="pool p answered: there is none"):
        await asked(Fleet())


async def test_a_refusal_is_passed_on_and_no_other_one_is_asked() -> None:
    fleet = Fleet((grpc.StatusCode.INVALID_ARGUMENT, "tokens: token 9 is outside"), None)
    with pytest.raises(InvalidInput, match="token 9"):
        await asked(fleet)
    assert [stub.asked for stub in fleet.stubs] == [1, 0]
