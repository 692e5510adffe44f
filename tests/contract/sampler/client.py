"""A sampler process and a client for it, as a test sees them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import AdapterRef, SampleBody, SampledSequence, StopCondition, TopkTable

from services.common.grpc_channel import open_channel

ROOT = Path(__file__).resolve().parents[3]
_numbers = itertools.count()


@dataclass(slots=True)
class SamplerProcess:
    """`python -m services.sampler` with its store."""

    process: subprocess.Popen[bytes]
    port: int
    model: Path
    store: Path
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def children(self) -> list[str]:
        return [" ".join(child.cmdline()) for child in psutil.Process(self.process.pid).children(recursive=True)]

    def stop(self, timeout: float = 30.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                self.process.kill()


def start_sampler(model: Path, scratch: Path, timeout: float = 240.0, **settings: object) -> SamplerProcess:
    """Returns when it serves; raises with its log when it ends before."""
    store, port_file, log = scratch / "store", scratch / "port", scratch / "log"
    store.mkdir(parents=True)
    values = {
        "model_path": model,
        "store_root": store,
        "listen": "127.0.0.1:0",
        "port_file": port_file,
        "kv_cache_gib": 0.125,
        "threads": 2,
        **settings,
    }
    environment = {f"TINKERMESH_SAMPLER_{name.upper()}": str(value) for name, value in values.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.sampler"],
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + timeout
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"sampler did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)
    return SamplerProcess(process, int(port_file.read_text()), model, store, log)


@dataclass(slots=True)
class Sequence:
    tokens: list[int]
    logprobs: np.ndarray
    stopped: bool
    topk: TopkTable | None

    @classmethod
    def of(cls, sequence: SampledSequence) -> Sequence:
        return cls(
            np.frombuffer(sequence.tokens, "<i4").tolist(),
            np.frombuffer(sequence.logprobs, "<f4"),
            sequence.stopped,
            sequence.topk if sequence.HasField("topk") else None,
        )


def rows(table: TopkTable) -> tuple[np.ndarray, np.ndarray]:
    """(token_ids int32 [L, k], logprobs float32 [L, k])."""
    shape = (table.length, table.k)
    return np.frombuffer(table.token_ids, "<i4").reshape(shape), np.frombuffer(table.logprobs, "<f4").reshape(shape)


def body(prompt: list[int], *, max_tokens: int = 1, stop: StopCondition | None = None, **fields: object) -> SampleBody:
    made = SampleBody(
        prompt_tokens=np.asarray(prompt, "<i4").tobytes(),
        num_samples=1,
        max_tokens=max_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        stop=stop or StopCondition(disabled=True),
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class SamplerClient:
    """`async with`; request ids are made up unless given."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> SamplerClient:
        self._channel = open_channel(self._address)
        self.stub = pb_grpc.SamplerStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    def new_number(self) -> int:
        return next(_numbers)

    async def result(
        self, request: SampleBody, adapter: AdapterRef | None = None, request_id: str = "", cache_salt: str = ""
    ) -> object:
        name = request_id or f"test.{next(_numbers)}"
        message = pb.SampleRequest(request_id=name, adapter=adapter, body=request, cache_salt=cache_salt)
        return (await self.stub.Sample(message, timeout=60)).result

    async def sample(
        self, request: SampleBody, adapter: AdapterRef | None = None, request_id: str = ""
    ) -> list[Sequence]:
        result = await self.result(request, adapter, request_id)
        return [Sequence.of(sequence) for sequence in result.sequences]

    async def score(self, prompt: list[int], adapter: AdapterRef | None = None) -> np.ndarray:
        """float32 [len(prompt)], NaN first."""
        result = await self.result(body(prompt, prompt_logprobs=True), adapter)
        return np.frombuffer(result.prompt_logprobs, "<f4")

    async def greedy(self, prompt: list[int], length: int, adapter: AdapterRef | None = None) -> Sequence:
        return (await self.sample(body(prompt, max_tokens=length, temperature=0.0), adapter))[0]

    async def load(self, adapter: AdapterRef) -> pb.LoadAdapterReply:
        return await self.stub.LoadAdapter(pb.LoadAdapterRequest(adapter=adapter), timeout=30)

    async def unload(self, name: str) -> bool:
        return (await self.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name), timeout=30)).was_loaded

    async def loaded(self) -> dict[str, pb.LoadedAdapter]:
        reply = await self.stub.ListAdapters(pb.ListAdaptersRequest(), timeout=10)
        return {entry.adapter.name: entry for entry in reply.adapters}

    async def until_running(self, count: int) -> None:
        """Bounded wait until at least `count` sequences are in the engine."""
        async with asyncio.timeout(10):
            while True:
                description = await self.stub.Describe(pb.DescribeSamplerRequest(), timeout=5)
                if description.running + description.waiting >= count:
                    return


def status(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
