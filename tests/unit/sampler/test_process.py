"""The process around a double of the engine: registration, death, signals, settings."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from tinkermesh.v1.sampler_pb2_grpc import SamplerStub

from services.common.errors import AdapterNotLoaded, InvalidInput, from_rpc_error
from services.common.grpc_channel import open_channel
from services.common.grpc_server import GrpcServer
from services.common.model_facts import model_facts
from services.sampler.metrics import SAMPLER
from services.sampler.ports import EngineDead
from services.sampler.process import SamplerProcess, serve
from services.sampler.settings import Settings
from tests.doubles.eventually import eventually
from tests.doubles.tokenizer import text_of
from tests.unit.sampler.doubles import FakeEngine, write_adapter, write_model
from tests.unit.sampler.test_sampling_plan import body

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "Some-Model")


def settings_for(model: Path, **changes: object) -> Settings:
    store = model.parent / "store"
    store.mkdir(exist_ok=True)
    values = {"model_path": str(model), "store_root": str(store), "listen": "127.0.0.1:0", "drain_seconds": 1.0}
    return Settings(**{**values, "port_file": str(model.parent / "port"), **changes})  # type: ignore[arg-type]


class Registry(scheduler_pb2_grpc.RegistryServicer):
    """A scheduler that remembers, or refuses, registrations."""

    def __init__(self) -> None:
        self.seen: list[scheduler_pb2.RegisterSamplerRequest] = []
        self.refusal = ""
        self.server = GrpcServer(["tinkermesh.v1.Registry"])
        scheduler_pb2_grpc.add_RegistryServicer_to_server(self, self.server.server)

    async def RegisterSampler(
        self, request: scheduler_pb2.RegisterSamplerRequest, context: object
    ) -> scheduler_pb2.RegisterReply:
        if self.refusal:
            raise InvalidInput(self.refusal)
        self.seen.append(request)
        return scheduler_pb2.RegisterReply(renew_after_ms=200)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    made = Registry()
    await made.server.start("127.0.0.1:0")
    yield made
    await made.server.stop(0.1)


class Running:
    """A SamplerProcess in this event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = FakeEngine()
        self.stop = asyncio.Event()

    async def __aenter__(self) -> Running:
        self.process = SamplerProcess(self.settings, self.engine, model_facts(self.settings, "float32"))
        self.task = asyncio.create_task(self.process.serve(self.stop))
        await eventually(lambda: Path(self.settings.port_file).exists() or self.task.done())
        self.channel = open_channel(f"127.0.0.1:{Path(self.settings.port_file).read_text().strip()}")
        self.stub = SamplerStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.channel.close()


async def test_it_registers_its_facts_and_renews(model: Path, registry: Registry) -> None:
    settings = settings_for(
        model, schedulers=f"127.0.0.1:{registry.server.port}", advertise="sampler.pod:7003", aliases="a, b"
    )
    async with Running(settings):
        await eventually(lambda: len(registry.seen) >= 3)
    first = registry.seen[0]
    assert first.address == "sampler.pod:7003"
    assert first.sampler_id == "sampler-some-model-sampler.pod:7003"
    assert first.role == "both"
    assert (first.max_adapters, first.max_running) == (8, 16)
    assert (first.facts.pool, first.facts.base_model) == ("some-model", "Some-Model")
    assert list(first.facts.aliases) == ["a", "b"]
    assert (first.facts.vocab_size, first.facts.max_context) == (100, 50)
    assert {request.incarnation for request in registry.seen} == {first.incarnation}


async def test_it_waits_for_a_scheduler_that_is_not_there_yet(model: Path, registry: Registry) -> None:
    port = registry.server.port
    await registry.server.stop(0)
    async with Running(settings_for(model, schedulers=f"127.0.0.1:{port}")):
        later = Registry()
        await later.server.start(f"127.0.0.1:{port}")
        await eventually(lambda: bool(later.seen))
        await later.server.stop(0.1)


async def test_a_pool_that_refuses_it_ends_the_process_with_the_text(model: Path, registry: Registry) -> None:
    registry.refusal = "pool some-model has vocab_size 99, not 100"
    async with Running(settings_for(model, schedulers=f"127.0.0.1:{registry.server.port}")) as running:
        with pytest.raises(InvalidInput, match="vocab_size 99"):
            await asyncio.wait_for(running.task, 10)


async def test_a_dead_engine_fails_open_calls_and_ends_the_process(model: Path) -> None:
    async with Running(settings_for(model)) as running:
        running.engine.gate.clear()
        call = running.stub.Sample(pb.SampleRequest(request_id="r", body=body()), timeout=10)
        waiting = asyncio.ensure_future(call)
        await eventually(lambda: bool(running.engine.running))
        running.engine.dead.set_result(EngineDead("stage engine step: the engine died: boom"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "boom" in str(caught.value.details())
        with pytest.raises(EngineDead, match="boom"):
            await asyncio.wait_for(running.task, 10)


async def refuses_as_stopping(running: Running) -> bool:
    """A sample that is still taken waits at the gate, for a moment only."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub.Sample(pb.SampleRequest(request_id="late", body=body()), timeout=0.2)
    if caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return False
    assert "stopping" in str(caught.value.details())
    return True


async def test_a_stop_lets_running_samples_finish_and_takes_no_new_ones(model: Path) -> None:
    async with Running(settings_for(model)) as running:
        running.engine.gate.clear()
        waiting = asyncio.ensure_future(running.stub.Sample(pb.SampleRequest(request_id="r", body=body()), timeout=10))
        await eventually(lambda: bool(running.engine.running))
        running.stop.set()
        await eventually(lambda: refuses_as_stopping(running))
        running.engine.gate.set()
        assert len((await waiting).result.sequences) == 1
        await asyncio.wait_for(running.task, 10)


async def test_a_burst_of_samples_is_served_whole(model: Path) -> None:
    """gRPC by itself cancels some of more than 1,000 calls that wait to be picked up."""
    async with Running(settings_for(model)) as running:
        calls = [
            running.stub.Sample(pb.SampleRequest(request_id=f"r{n}", body=body(max_tokens=1)), timeout=60)
            for n in range(1500)
        ]
        replies = await asyncio.gather(*calls)
    assert all(len(reply.result.sequences) == 1 for reply in replies)


async def test_adapters_by_rpc(model: Path) -> None:
    settings = settings_for(model)
    write_adapter(Path(settings.store_root) / "runs" / "m")
    async with Running(settings) as running:
        adapter = {"name": "m@1", "path": "runs/m"}
        first = await running.stub.LoadAdapter(pb.LoadAdapterRequest(adapter=adapter))
        second = await running.stub.LoadAdapter(pb.LoadAdapterRequest(adapter=adapter))
        assert (first.already_loaded, second.already_loaded) == (False, True)
        await running.stub.Sample(pb.SampleRequest(request_id="r", adapter=adapter, body=body()))
        (listed,) = (await running.stub.ListAdapters(pb.ListAdaptersRequest())).adapters
        assert (listed.adapter.name, listed.adapter.path, listed.loads, listed.in_use) == ("m@1", "runs/m", 1, 0)
        assert (await running.stub.UnloadAdapter(pb.UnloadAdapterRequest(name="m@1"))).was_loaded


async def test_a_stream_by_rpc_and_ids_of_a_conversation(model: Path) -> None:
    async with Running(settings_for(model)) as running:
        sample = pb.SampleRequest(request_id="r", body=body(max_tokens=3))
        asked = pb.SampleStreamRequest(sample=sample, with_text=True)
        chunks = [chunk async for chunk in running.stub.SampleStream(asked, timeout=10)]
        assert [chunk.finish for chunk in chunks] == ["", "", "length"]
        reply = await running.stub.Tokenize(pb.TokenizeRequest(text="ab"), timeout=10)
        assert text_of(np.frombuffer(reply.tokens, "<i4").tolist()) == "ab"
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
            await running.stub.Tokenize(pb.TokenizeRequest(chat_json="{"), timeout=10)


async def test_callers_that_go_away_anywhere_leave_nothing_behind_PDR_12(model: Path) -> None:
    """1,000 streams cancelled at random points, some aborted, some read to their end."""
    random = np.random.default_rng(11)
    async with Running(settings_for(model, orphan_seconds=0.05)) as running:

        async def one(number: int) -> None:
            sample = pb.SampleRequest(request_id=f"r{number}", body=body(max_tokens=6, num_samples=1 + number % 3))
            call = running.stub.SampleStream(pb.SampleStreamRequest(sample=sample), timeout=60)
            try:
                for _ in range(int(random.integers(0, 8))):
                    await call.read()
                if number % 4 == 0:
                    await running.stub.Abort(pb.AbortRequest(request_id=f"r{number}"), timeout=60)
            finally:
                call.cancel()

        for first in range(0, 1000, 100):
            running.engine.gate.clear() if first % 200 else running.engine.gate.set()
            running.engine.told = 2
            # One that reads past what the gate lets through waits; its time ends it.
            await asyncio.gather(*(asyncio.wait_for(one(first + n), 0.5) for n in range(100)), return_exceptions=True)
        await eventually(lambda: running.engine.running == 0)
        await eventually(lambda: not running.process._runs._runs)
        open_ones = "tinkermesh_sampler_sequences_open"
        await eventually(lambda: SAMPLER.registry.get_sample_value(open_ones) == 0)


async def test_a_stop_ends_streams_as_it_ends_samples(model: Path) -> None:
    async with Running(settings_for(model, drain_seconds=0.05)) as running:
        running.engine.gate.clear()
        running.engine.told = 1
        sample = pb.SampleRequest(request_id="r", body=body())
        call = running.stub.SampleStream(pb.SampleStreamRequest(sample=sample), timeout=30)
        await call.read()
        running.stop.set()
        with pytest.raises(grpc.aio.AioRpcError, match="r was aborted"):
            await call.read()
        await asyncio.wait_for(running.task, 10)


async def test_its_role_is_registered_and_described(model: Path, registry: Registry, tmp_path: Path) -> None:
    tier = {"kv_directory": str(tmp_path / "tier"), "kv_hash_seed": "7"}
    settings = settings_for(model, schedulers=f"127.0.0.1:{registry.server.port}", role="prefill", **tier)
    async with Running(settings) as running:
        await eventually(lambda: bool(registry.seen))
        assert (await running.stub.Describe(pb.DescribeSamplerRequest())).role == "prefill"
        adapter = {"name": "m@1", "path": "runs/m"}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.Sample(pb.SampleRequest(request_id="r", adapter=adapter, body=body()), timeout=3)
        assert isinstance(from_rpc_error(caught.value), AdapterNotLoaded)
    assert registry.seen[0].role == "prefill"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": "all"}, "role 'all' is not one of both, prefill, decode"),
        ({"max_adapters": 0}, "max_adapters"),
        ({"kv_cache_gib": 0.0}, "kv_cache_gib"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_settings_that_cannot_be_honoured_are_named(model: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        settings_for(model, **changes).check()


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"max_context": 51}, "50 positions"), ({"pool": "No Pool"}, "pool"), ({"model_path": "/nowhere"}, "model path")],
)
def test_facts_that_do_not_fit_are_named(model: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        model_facts(settings_for(model, **changes), "float32")


def _environment(model: Path) -> dict[str, str]:
    settings = settings_for(model)
    names = ("model_path", "store_root", "listen", "port_file")
    values = {f"TINKERMESH_SAMPLER_{name.upper()}": str(getattr(settings, name)) for name in names}
    return {**os.environ, **values, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_the_process_with_0(model: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.sampler.double_process"], env=_environment(model), cwd=ROOT
    )
    try:
        deadline = time.monotonic() + 60
        while not (model.parent / "port").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()


class LateEngine(FakeEngine):
    """Starts never, or fails to; `patience` is what its end was given."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.starting = asyncio.Event()
        self.patience: list[float] = []

    async def start(self) -> None:
        self.starting.set()
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()

    async def stop(self, timeout_seconds: float) -> bool:
        self.patience.append(timeout_seconds)
        return False


async def test_engine_that_is_still_starting_at_a_stop_signal_cleans_up_at_once(model: Path) -> None:
    engine = LateEngine()
    serving = asyncio.create_task(serve(settings_for(model), lambda settings, facts: engine))
    await asyncio.wait_for(engine.starting.wait(), 10)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 10)
    assert engine.patience == [0.0]


async def test_engine_that_failed_to_start_cleans_up_and_its_cause_is_raised(model: Path) -> None:
    engine = LateEngine(OSError("no such weights"))
    with pytest.raises(OSError, match="no such weights"):
        await serve(settings_for(model), lambda settings, facts: engine)
    assert engine.patience == [0.0]


def test_a_bad_setting_ends_the_process_with_1_and_its_name(model: Path) -> None:
    environment = {**_environment(model), "TINKERMESH_SAMPLER_MAX_ADAPTERS": "many"}
    done = subprocess.run(
        [sys.executable, "-m", "services.sampler"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "max_adapters" in done.stderr
