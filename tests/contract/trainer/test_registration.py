"""The trainer tells schedulers that it is there until it is not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc as pb_grpc

from services.common.errors import InvalidInput, Unavailable
from services.common.grpc_server import GrpcServer
from services.trainer import registration
from services.trainer.registration import keep_registered
from tests.contract.trainer.harness import local_trainer, stub_settings
from tests.contract.trainer.trainer_process import TrainerProcess


class Registry(pb_grpc.RegistryServicer):
    def __init__(self) -> None:
        self.seen: asyncio.Queue[pb.RegisterTrainerRequest] = asyncio.Queue()
        self.refusal = None

    async def RegisterTrainer(self, request, context):
        await self.seen.put(request)
        if self.refusal is not None:
            raise self.refusal
        return pb.RegisterReply(renew_after_ms=50)


@asynccontextmanager
async def registry(address: str = "127.0.0.1:0"):
    servicer, server = Registry(), GrpcServer([])
    pb_grpc.add_RegistryServicer_to_server(servicer, server.server)
    port = await server.start(address)
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0.1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(registration, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(registration, "INTERVAL_SECONDS", 0.2)


async def test_serving_trainer_registers_its_facts_and_renews_ADD_01(tmp_path):
    async with registry() as (book, target), local_trainer(tmp_path, schedulers=target) as (_, client):
        first = await asyncio.wait_for(book.seen.get(), 30)
        again = await asyncio.wait_for(book.seen.get(), 30)
        assert first == again
        assert first.incarnation == client.units.incarnation
        assert first.trainer_id == "trainer-stub"
        assert (first.facts.pool, first.facts.slots) == ("stub", 4)
        assert first.address.startswith("127.0.0.1:")


async def test_a_refusal_is_final_and_says_why():
    async with registry() as (book, target):
        book.refusal = InvalidInput("vocab_size 32 differs from the pool's 64")
        with pytest.raises(InvalidInput, match=f"scheduler {target} refuses this trainer: vocab_size 32 differs"):
            await asyncio.wait_for(keep_registered([target], pb.RegisterTrainerRequest(trainer_id="t")), 30)
        assert book.seen.qsize() == 1


async def test_a_refused_trainer_process_exits_1_naming_the_cause(tmp_path):
    """As a refused sampler does; whoever supervises it sees that it does not fit."""
    async with registry() as (book, target):
        book.refusal = InvalidInput("vocab_size 32 differs from the pool's 64")
        trainer = TrainerProcess(stub_settings(tmp_path, schedulers=target))
        assert await trainer.wait(60) == 1
    assert "the trainer ends: scheduler" in trainer.log()
    assert "vocab_size 32 differs" in trainer.log()
    assert "Traceback" not in trainer.log()


async def test_what_passes_is_tried_again():
    async with registry() as (book, target):
        book.refusal = Unavailable("its facts keep changing")
        task = asyncio.create_task(keep_registered([target], pb.RegisterTrainerRequest(trainer_id="t")))
        for _ in range(3):
            await asyncio.wait_for(book.seen.get(), 30)
        book.refusal = None
        for _ in range(2):
            await asyncio.wait_for(book.seen.get(), 30)
        task.cancel()


async def test_next_scheduler_is_tried_when_one_is_away():
    async with registry() as (book, target):
        task = asyncio.create_task(keep_registered(["127.0.0.1:1", target], pb.RegisterTrainerRequest(trainer_id="t")))
        await asyncio.wait_for(book.seen.get(), 30)
        task.cancel()


async def test_scheduler_that_restarts_is_found_again():
    async with registry() as (book, target):
        task = asyncio.create_task(keep_registered([target], pb.RegisterTrainerRequest(trainer_id="t")))
        await asyncio.wait_for(book.seen.get(), 30)
    async with registry(target) as (book, _):
        await asyncio.wait_for(book.seen.get(), 30)
        task.cancel()
