"""The sampler double: real protocol, adapters by version directory, hashed tokens.

    python -m tests.doubles.fake_sampler --listen 127.0.0.1:0 --port-file F --scheduler HOST:PORT[,HOST:PORT] \
        --store-root DIR [--control FILE] [--journal FILE] [--role both|prefill|decode]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc as pb_grpc
from tinkermesh.v1 import scheduler_pb2, types_pb2

from services.common import logs, telemetry
from services.common.errors import AdapterNotLoaded, Busy, InvalidInput, ServerError, Unavailable
from services.common.grpc_boundary import Context
from services.sampler import metrics
from services.sampler.conversation import parse_conversation
from services.sampler.kv_metrics import SAMPLER
from services.sampler.legs import BOTH, ROLES, check_leg, check_stream, not_loaded
from services.sampler.tier_desk import TierDesk
from tests.doubles import arithmetic, generation, published
from tests.doubles.fake_trainer import POOL, trainer_facts
from tests.doubles.faults import Faults, Rule
from tests.doubles.journal import Journal
from tests.doubles.process import engine_parser, run_service, serve_until_signal
from tests.doubles.registration import RegisteredServer
from tests.doubles.stream_runs import StreamRun, StreamRuns, token_faults
from tests.doubles.tier import MemoryTier
from tests.doubles.unit_runner import die_if

log = logging.getLogger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["Sampler"].full_name
MAX_ADAPTERS = 8
MAX_RUNNING = 64
BASE_WEIGHTS = arithmetic.residue("base")


@dataclass(slots=True)
class Loaded:
    ref: types_pb2.AdapterRef
    engine_id: int
    weights: int
    in_use: int = 0
    loads: int = 1


def sampler_facts(pool: str = POOL) -> types_pb2.PoolFacts:
    """The trainer's facts without what only a trainer knows."""
    facts = trainer_facts(pool=pool)
    for name in (
        "slots",
        "max_rank",
        "alpha",
        "train_attn",
        "train_mlp",
        "train_unembed",
        "losses",
        "unit_token_budget",
    ):
        facts.ClearField(name)
    return facts


def kv_facts(facts: types_pb2.PoolFacts) -> pb.KvFacts:
    return pb.KvFacts(
        engine="double 1",
        model_fingerprint=facts.model_fingerprint,
        block_size=32,
        hash_algorithm="sha256",
        hash_seed="0",
        dtype=facts.dtype,
        tier="tier-double",
    )


class FakeSampler(RegisteredServer, pb_grpc.SamplerServicer):
    """In a test's own loop: `await start(...)`, use `.faults`, `.journal`, `await stop()`."""

    def __init__(
        self,
        store_root: Path,
        *,
        facts: types_pb2.PoolFacts | None = None,
        sampler_id: str = "sampler-double",
        max_adapters: int = MAX_ADAPTERS,
        control: Path | None = None,
        journal: Path | None = None,
        role: str = BOTH,
        orphan_seconds: float = 30.0,
        kv: pb.KvFacts | None = None,
        tier: MemoryTier | None = None,
    ) -> None:
        super().__init__(SERVICE)
        self.store_root = store_root
        self.facts = facts or sampler_facts()
        self.sampler_id = sampler_id
        self.incarnation = uuid.uuid4().hex
        self.max_adapters = max_adapters
        self.role = role
        self.kv = kv or (None if role == BOTH else kv_facts(self.facts))
        self.tier = tier or MemoryTier()
        self._tier_desk = TierDesk(self.tier if self.kv is not None else None, self.kv, role)
        self.faults = Faults(control)
        self.journal = Journal(journal, self.incarnation)
        self.loaded: dict[str, Loaded] = {}  # least recently used first
        self.running: dict[str, asyncio.Task[Any]] = {}  # streams too
        self.attached = 0  # calls of Sample that joined a running one
        self.streams = StreamRuns(self.running, orphan_seconds)
        self._engine_ids = 0
        metrics.watching(
            lambda: {"ready": len(self.loaded)}, lambda: 0, max_adapters, lambda: (len(self.running), 0), MAX_RUNNING
        )
        metrics.watching_sequences(lambda: len(self.running), MAX_RUNNING)

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_SamplerServicer_to_server(self, server)

    def registration(self) -> scheduler_pb2.RegisterSamplerRequest:
        return scheduler_pb2.RegisterSamplerRequest(
            sampler_id=self.sampler_id,
            incarnation=self.incarnation,
            address=self.address,
            facts=self.facts,
            role=self.role,
            max_adapters=self.max_adapters,
            max_running=MAX_RUNNING,
            kv=self.kv,
        )

    async def Describe(self, request: pb.DescribeSamplerRequest, context: Context) -> pb.SamplerDescription:
        return pb.SamplerDescription(
            sampler_id=self.sampler_id,
            incarnation=self.incarnation,
            facts=self.facts,
            role=self.role,
            max_adapters=self.max_adapters,
            max_running=MAX_RUNNING,
            running=len(self.running),
            engine="double 1",
            kv=self.kv,
        )

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterReply:
        known = request.adapter.name in self.loaded
        await self._load(request.adapter)
        return pb.LoadAdapterReply(already_loaded=known)

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: Context) -> pb.UnloadAdapterReply:
        found = self.loaded.get(request.name)
        if found is not None and found.in_use:
            raise ServerError(f"adapter {request.name} is in use by {found.in_use} requests")
        return pb.UnloadAdapterReply(was_loaded=self.loaded.pop(request.name, None) is not None)

    async def ListAdapters(self, request: pb.ListAdaptersRequest, context: Context) -> pb.ListAdaptersReply:
        return pb.ListAdaptersReply(
            adapters=[
                pb.LoadedAdapter(adapter=a.ref, engine_id=a.engine_id, in_use=a.in_use, loads=a.loads)
                for a in self.loaded.values()
            ]
        )

    async def TierStatus(self, request: pb.TierStatusRequest, context: Context) -> pb.TierStatusReply:
        return await self._tier_desk.status()

    async def InvalidateBlocks(self, request: pb.InvalidateBlocksRequest, context: Context) -> pb.InvalidateBlocksReply:
        return pb.InvalidateBlocksReply(dropped=await self._tier_desk.invalidate(request))

    async def Sample(self, request: pb.SampleRequest, context: Context) -> pb.SampleReply:
        """A repeated request_id attaches to the running call."""
        task = self.running.get(request.request_id)
        if task is None:
            task = asyncio.create_task(self._generate(request))
            self.running[request.request_id] = task
            task.add_done_callback(lambda _: self.running.pop(request.request_id, None))
        else:
            self.attached += 1
        try:
            return pb.SampleReply(result=await asyncio.shield(task))
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise Unavailable(f"request {request.request_id} was aborted") from error
            raise

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        task = self.running.get(request.request_id)
        return pb.AbortReply(was_running=task is not None and task.cancel())

    async def _generate(self, request: pb.SampleRequest) -> types_pb2.SampleResult:
        ids = {"request_id": request.request_id}
        with logs.bind(**ids), telemetry.span("sampler.sample", {**ids, "adapter": request.adapter.name or "base"}):
            with metrics.sample():
                result = await self._sample(request)
            made = sum(len(sequence.tokens) // 4 for sequence in result.sequences)
            metrics.tokens(len(request.body.prompt_tokens) // 4, 0, made)
            log.info("sampled %d sequences with %s", len(result.sequences), request.adapter.name or "base")
            return result

    async def _sample(self, request: pb.SampleRequest) -> types_pb2.SampleResult:
        async with self._taken(request, "sample") as (weights, due):
            made = generation.result(weights, request.body, _seed(request))
            self._journal(request)
            die_if(due, "die_after")
            await self.faults.apply_waits(due, "after")
            return made

    async def SampleStream(self, request: pb.SampleStreamRequest, context: Context) -> AsyncIterator[pb.SampleChunk]:
        """One token in a chunk, the sequences in turn."""
        check_leg(request.sample, self.role)
        check_stream(request)
        async with aclosing(self.streams.follow(request, lambda run: self._stream(request, run))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _stream(self, request: pb.SampleStreamRequest, run: StreamRun) -> AsyncIterator[pb.SampleChunk]:
        sample, told = request.sample, 0
        async with self._taken(sample, "sample.stream") as (weights, due):
            for chunk in _chunks(weights, request):
                if not await token_faults(due, told, run.until_delivered, self.faults.hold):
                    return
                yield chunk
                told += 1
            self._journal(sample, stream=True, leg=pb.Leg.Name(sample.leg), seam_tokens=request.seam_tokens)
            metrics.tokens(len(sample.body.prompt_tokens) // 4, 0, told)
            await self.faults.apply_waits(due, "after")

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeReply:
        if request.WhichOneof("input") == "chat_json":
            tokens = generation.TOKENIZER.render(parse_conversation(request.chat_json))
        else:
            tokens = generation.TOKENIZER.encode(request.text, add_special_tokens=request.add_special_tokens)
        return pb.TokenizeReply(tokens=np.array(tokens, "<i4").tobytes())

    async def Pieces(self, request: pb.PiecesRequest, context: Context) -> pb.PiecesReply:
        tokens = np.frombuffer(request.tokens, "<i4").tolist()
        return pb.PiecesReply(pieces=[generation.TOKENIZER.piece(token) for token in tokens])

    @asynccontextmanager
    async def _taken(self, request: pb.SampleRequest, kind: str) -> AsyncIterator[tuple[int, list[Rule]]]:
        """(weights, rules that are due), with the adapter in use."""
        due = self.faults.due(kind)
        held = await self._adapter(request.adapter) if request.HasField("adapter") else None
        if held is not None:
            held.in_use += 1
        try:
            await self.faults.apply_waits(due, "before")
            die_if(due, "die_before")
            if any(rule.action in ("fail", "drop_reply") for rule in due):
                raise Unavailable("injected failure of a sample")
            yield held.weights if held else BASE_WEIGHTS, due
        finally:
            if held is not None:
                held.in_use -= 1

    def _journal(self, request: pb.SampleRequest, **more: object) -> None:
        entry = {"kind": "sample", "request": request.request_id, "adapter": request.adapter.name}
        self.journal.write({**entry, **more})

    async def _adapter(self, ref: types_pb2.AdapterRef) -> Loaded:
        if self.role != BOTH and ref.name not in self.loaded:
            raise AdapterNotLoaded(not_loaded(ref.name, ref.path, self.role))
        return await self._load(ref)

    async def _load(self, ref: types_pb2.AdapterRef) -> Loaded:
        """Raises MissingResource, InvalidInput, Busy (every place is held by adapters in use)."""
        if ref.name not in self.loaded:
            with metrics.adapter_load():
                await self._injected(ref)
                if ref.name not in self.loaded:
                    self.loaded[ref.name] = self._new(ref)
        found = self.loaded[ref.name] = self.loaded.pop(ref.name)  # the last used stands last
        return found

    async def _injected(self, ref: types_pb2.AdapterRef) -> None:
        due = self.faults.due("load_adapter")
        await self.faults.apply_waits(due, "before")
        if any(rule.action == "fail_user" for rule in due):
            raise InvalidInput(f"adapter {ref.name} cannot be served: injected")
        if any(rule.action == "fail" for rule in due):
            raise Unavailable(f"adapter {ref.name}: stage loading: injected")

    def _new(self, ref: types_pb2.AdapterRef) -> Loaded:
        weights = int(str(published.read_state(self.store_root, ref.path)["weights"]), 16)
        self._make_room()
        self._engine_ids += 1
        self.journal.write({"kind": "load_adapter", "adapter": ref.name, "path": ref.path})
        return Loaded(ref, self._engine_ids, weights)

    def _make_room(self) -> None:
        if len(self.loaded) < self.max_adapters:
            return
        idle = next((name for name, adapter in self.loaded.items() if not adapter.in_use), None)
        if idle is None:
            raise Busy(f"all {self.max_adapters} adapter places are in use")
        del self.loaded[idle]
        metrics.evicted(asked=False)


def _seed(request: pb.SampleRequest) -> int:
    return request.body.seed if request.body.HasField("seed") else arithmetic.residue(request.request_id) % 2**32


def _chunks(weights: int, request: pb.SampleStreamRequest) -> Iterator[pb.SampleChunk]:
    body = request.sample.body
    asked = generation.Asked(request.seam_tokens, request.sample.leg == pb.LEG_PREFILL)
    made = [generation.steps(weights, body, _seed(request.sample), n, asked) for n in range(body.num_samples)]
    for turn in zip_longest(*made):
        for sequence, step in enumerate(turn):
            if step is not None:
                yield pb.SampleChunk(
                    sequence=sequence,
                    tokens=np.array([step.token], "<i4").tobytes(),
                    logprobs=np.array([step.logprob], "<f4").tobytes(),
                    topk=generation.topk([step], body.topk_sample_logprobs),
                    text=step.text if request.with_text else "",
                    finish=step.finish,
                )


def _arguments() -> argparse.Namespace:
    parser = engine_parser(__doc__)
    parser.add_argument("--sampler-id", default="sampler-double")
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--role", default=BOTH, choices=ROLES)
    parser.add_argument("--max-adapters", type=int, default=MAX_ADAPTERS)
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> None:
    sampler = FakeSampler(
        arguments.store_root,
        facts=sampler_facts(arguments.pool),
        sampler_id=arguments.sampler_id,
        control=arguments.control,
        journal=arguments.journal,
        role=arguments.role,
        max_adapters=arguments.max_adapters,
    )
    await sampler.start(arguments.listen, arguments.scheduler)
    await serve_until_signal(sampler.address, arguments.port_file)
    await sampler.stop()


def main() -> None:
    parsed = _arguments()
    run_service("sampler", parsed.sampler_id, _main(parsed), SAMPLER)


if __name__ == "__main__":
    main()
