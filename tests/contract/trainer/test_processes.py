"""Real trainer processes around the stub engine: signals, ranks, death."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER

from tests.contract.trainer.harness import MODEL, Client, connected, datum, stub_settings
from tests.contract.trainer.trainer_process import TrainerProcess
from tests.doubles.eventually import eventually


@asynccontextmanager
async def process(root: Path, environment: dict[str, str] | None = None, **changes: object):
    trainer = TrainerProcess(stub_settings(root, threads=1, **changes), **(environment or {}))
    try:
        async with connected(await trainer.address()) as client:
            yield trainer, client
    except BaseException:
        trainer.kill()
        print(trainer.log())
        raise
    finally:
        trainer.kill()


@contextmanager
def fault(path: Path, method: str, rank: int | str, error: str):
    path.write_text(json.dumps({"method": method, "rank": rank, "error": error}))
    yield
    path.unlink()


async def runs(client: Client) -> bool:
    return bool((await client.stub.Describe(pb.DescribeTrainerRequest())).running_unit)


async def test_sigterm_finishes_the_running_unit_flushes_saves_and_exits_0_MESH_03_ADD_08(tmp_path):
    gate = tmp_path / "gate"
    async with process(tmp_path, {"TINKERMESH_STUB_GATE": str(gate)}) as (trainer, client):
        await client.done(client.units.init(0))
        save = client.units.save(0, "last")
        await client.done(save)
        running = asyncio.create_task(client.execute(client.units.train([(0, [datum()])])))
        await eventually(lambda: runs(client))
        trainer.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert not running.done()
        gate.touch()
        outcome, scores = await running
        assert not outcome.HasField("failure")
        assert len(scores) == 24
        assert await trainer.wait() == 0
    assert (tmp_path / f"store/runs/{MODEL}/weights/last/meta.json").is_file()


async def test_every_life_has_its_own_incarnation_and_refuses_the_last_ones_units(tmp_path):
    async with process(tmp_path) as (trainer, client):
        old = client.units.init(0)
        await client.done(old)
        assert await trainer.terminate() == 0
    async with process(tmp_path) as (trainer, client):
        assert client.units.incarnation != old.incarnation
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.execute(old)
        assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_start_up_error_exits_1_naming_the_cause(tmp_path):
    trainer = TrainerProcess(stub_settings(tmp_path, model_path=str(tmp_path / "nowhere")))
    assert await trainer.wait(60) == 1
    assert "not a Hugging Face model directory" in trainer.log()
    assert "Traceback" not in trainer.log()


async def work_through(client: Client, store: Path) -> None:
    await client.done(client.units.init(0))
    await client.done(client.units.train([(0, [datum(), datum(seed=1)])]))
    await client.done(client.units.optim(0))
    version = await client.published(client.units.save(0, "a"))
    await client.done(client.units.load(1, version))
    await client.published(client.units.snapshot(1, "1"))
    await client.done(client.units.unload(0))
    meta = json.loads((store / version / "meta.json").read_text())
    assert meta["topology"] == {"tensor_parallel": 2, "data_parallel": 1}


async def test_error_of_any_rank_in_any_phase_is_agreed_by_all_within_5_s_CKPT_08_GAP_13(tmp_path):
    faults = tmp_path / "faults"
    async with process(tmp_path, {"TINKERMESH_STUB_FAULTS": str(faults)}, tp=2) as (trainer, client):
        assert (await client.stub.Describe(pb.DescribeTrainerRequest())).world_size == 2
        await work_through(client, tmp_path / "store")
        version = await client.published(client.units.save(1, "b"))
        cases = [
            (1, "capture", "OSError", client.units.save(1, "c")),
            (0, "capture", "NotImplementedError", client.units.save(1, "d")),
            (1, "capture", "TypeError", client.units.snapshot(1, "e")),
            (1, "init_slot", "ValueError", client.units.init(2)),
            (1, "restore", "OSError", client.units.load(3, version)),
            (1, "clear_slot", "OSError", client.units.unload(0)),
            ("all", "run_pass", "MemoryError", client.units.train([(1, [datum()])])),
        ]
        for rank, method, error, unit in cases:
            with fault(faults, method, rank, error):
                started = time.monotonic()
                outcome, _ = await client.execute(unit)
                assert time.monotonic() - started < 5, method
                failures = [outcome.failure, *(s.failure for s in outcome.slots)]
                assert any(f.message for f in failures), (method, outcome)
        for slot in (0, 2, 3):
            await client.done(client.units.unload(slot))
        await client.done(client.units.train([(1, [datum()])]))
        await client.done(client.units.optim(1))
        await client.published(client.units.save(1, "c"))
        assert await trainer.terminate() == 0


async def test_unreadable_checkpoint_on_both_ranks_leaves_both_slots_alone_CKPT_06(tmp_path):
    async with process(tmp_path, tp=2) as (_, client):
        await client.done(client.units.init(0))
        version = await client.published(client.units.save(0, "a"))
        (tmp_path / "store" / version / "adapter_model.safetensors").write_bytes(b"")
        assert "checksum" in await client.refused(client.units.load(0, version, into=1))
        assert "exists already" in await client.refused(client.units.save(0, "a"))
        await client.done(client.units.train([(0, [datum()])]))


@pytest.mark.parametrize(("rank", "error"), [(1, "OSError"), (1, "exit")])
async def test_ranks_that_diverged_end_the_incarnation_with_an_error_FAIL_01(tmp_path, rank: int, error: str):
    faults = tmp_path / "faults"
    async with process(tmp_path, {"TINKERMESH_STUB_FAULTS": str(faults)}, tp=2) as (trainer, client):
        await client.done(client.units.init(0))
        children = psutil.Process(trainer.process.pid).children()
        with fault(faults, "run_pass", rank, error):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.execute(client.units.train([(0, [datum()])]))
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert await trainer.wait(30) == 1
        psutil.wait_procs(children, timeout=5)
        assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]


async def test_other_ranks_end_when_rank_0_is_killed(tmp_path):
    async with process(tmp_path, dp=2) as (trainer, client):
        await client.done(client.units.init(0))
        children = psutil.Process(trainer.process.pid).children()
        assert len(children) == 1
        os.kill(trainer.process.pid, signal.SIGKILL)
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 15)
        for child in alive:
            child.kill()
        assert alive == []


async def test_idle_ranks_are_told_so_and_stay():
    """In threads: the leader announces idleness before the others' patience ends."""
    import queue
    import threading

    from services.trainer.rank_loop import _IDLE, Stop, lead

    class Counting:
        rank, world = 0, 2

        def __init__(self) -> None:
            self.said: list[bytes] = []

        def announce(self, message: bytes) -> None:
            self.said.append(message)

    control, commands = Counting(), queue.SimpleQueue()
    thread = threading.Thread(target=lead, args=(commands, None, control, None), kwargs={"idle_seconds": 0.01})
    thread.start()
    await eventually(lambda: control.said.count(_IDLE) >= 3)
    commands.put(Stop())
    await asyncio.to_thread(thread.join, 5)
    assert control.said[-1] == b"s"


async def test_store_that_refuses_the_write_fails_that_save_and_the_trainer_goes_on_FAIL_15(tmp_path):
    """The kernel's own refusal, in the middle of a file."""
    async with process(tmp_path) as (trainer, client):
        await client.done(client.units.init(0))
        unlimited = resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, (1024, unlimited[1]))
        artifact = await client.artifact(client.units.save(0, "a"))
        assert artifact.failure.category == FAILURE_CATEGORY_SERVER
        assert "File too large" in artifact.failure.message
        assert list((tmp_path / f"store/runs/{MODEL}/weights").iterdir()) == []
        resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, unlimited)
        await client.done(client.units.train([(0, [datum()])]))
        await client.published(client.units.save(0, "a"))


async def test_a_retired_trainer_ends_naming_why_and_flushes_its_saves_FAIL_16(tmp_path):
    async with process(tmp_path) as (trainer, client):
        await client.done(client.units.init(0))
        await client.done(client.units.save(0, "last"))
        stale = pb.RetireRequest(term=1, incarnation="another", reason="no")
        with pytest.raises(grpc.aio.AioRpcError):
            await client.stub.Retire(stale, timeout=10)
        assert trainer.process.poll() is None
        request = pb.RetireRequest(term=1, incarnation=client.units.incarnation, reason="5 units in a row failed")
        await client.stub.Retire(request, timeout=10)
        assert await trainer.wait() == 1
        log = trainer.log()
        assert "the trainer ends: the scheduler asks for a restart: 5 units in a row failed" in log
        assert '"refused": "Retire"' in log
    assert (tmp_path / f"store/runs/{MODEL}/weights/last/meta.json").is_file()


async def test_taken_port_exits_1_naming_the_address(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        trainer = TrainerProcess(stub_settings(tmp_path, listen=address))
        assert await trainer.wait(60) == 1
    assert address in trainer.log()


async def test_sigterm_while_idle_exits_0_soon(tmp_path):
    async with process(tmp_path) as (trainer, _):
        started = time.monotonic()
        assert await trainer.terminate() == 0
        assert time.monotonic() - started < 5
