"""Plays a history's clients against a mesh and keeps what they were answered."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.client import ClientSaw, RetryingClient, Seen
from tests.chaos.history import Command, History, ModelPlan
from tests.chaos.reference import ADAM, BAD_TOKEN, adam_of, sample_of
from tests.doubles.wire_client import Body, Json, batch
from tests.mesh.main_path import create_model

PIPELINE = 24


@dataclass(slots=True)
class Sampled:
    """One sample drawn from a snapshot."""

    seed: int
    request_id: str
    body: bytes = b""


@dataclass(slots=True)
class Done:
    """One command as its client knows it."""

    command: Command
    request_id: str = ""
    body: bytes = b""
    sent: float = 0.0
    samples: list[Sampled] = field(default_factory=list)


@dataclass(slots=True)
class ModelRun:
    plan: ModelPlan
    model_id: str = ""
    session_id: str = ""
    source_path: str = ""
    create: Done = field(default_factory=lambda: Done(Command("create", 0)))
    commands: list[Done] = field(default_factory=list)

    def path(self, name: str) -> str:
        return f"tinker://{self.model_id}/weights/{name}"


@dataclass(slots=True)
class Run:
    """Everything the checker needs."""

    history: History
    seen: Seen = field(default_factory=Seen)
    models: list[ModelRun] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)


class Player:
    """`settled` hears of each training command: when it was sent, on the monotonic clock."""

    def __init__(
        self, history: History, urls: list[str], keys: Sequence[str], settled: Callable[[float], None] = lambda _: None
    ) -> None:
        self.run = Run(history)
        self._settled = settled
        self._rng = random.Random(f"client {history.seed}")
        self._clients = [
            RetryingClient(
                urls, keys[(history.seed + n) % len(keys)], self.run.seen, random.Random(f"{history.seed} {n}")
            )
            for n in range(history.tenants)
        ]
        self._sampler_numbers = [0] * history.tenants
        self._saved = [asyncio.Event() for _ in history.models]

    def _tenant(self, number: int, urls: list[str], key: str) -> RetryingClient:
        return RetryingClient(urls, key, self.run.seen, random.Random(f"{self.run.history.seed} {number}"))

    async def play(self) -> None:
        """All commands sent and settled; violations are in `run.seen`."""
        self.run.models = [ModelRun(plan) for plan in self.run.history.models]
        await self._safely(self._open_sessions())
        if len(self.run.sessions) == self.run.history.tenants:
            await asyncio.gather(*(self._safely(self._train(model)) for model in self.run.models))

    async def look_again(self) -> None:
        """Every future once more from every gateway."""
        await asyncio.gather(*(self._safely(self._look_again(model)) for model in self.run.models))

    async def finish(self) -> None:
        for tenant, session in enumerate(self.run.sessions):
            body = {"reason": {"type": "success"}, "detail": None}
            work = self._clients[tenant].post(f"/sessions/{session}/finish", body, again=True, expect=204)
            await self._safely(work)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _safely(self, work) -> None:
        try:
            await work
        except ClientSaw as violation:
            self.run.seen.violations.append(str(violation))

    async def _open_sessions(self) -> None:
        body = {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}
        for client in self._clients:
            self.run.sessions.append((await client.post("/create_session", body, again=self._chance()))["session_id"])

    def _chance(self) -> bool:
        return self._rng.random() < 0.3

    # ---- one model ---------------------------------------------------------------------------

    async def _train(self, model: ModelRun) -> None:
        try:
            await self._create(model)
            await self._send_all(model)
            await asyncio.gather(*(self._outcome(model, done) for done in model.commands))
            if model.plan.unload:
                await self._unload(model)
        finally:
            self._saved[model.plan.index].set()

    async def _create(self, model: ModelRun) -> None:
        plan = model.plan
        model.session_id = self.run.sessions[plan.tenant]
        route, body = "/create_model", create_model(model.session_id, plan.index, rank=plan.rank, seed=plan.seed)
        if plan.source >= 0:
            await self._saved[plan.source].wait()
            model.source_path = self.run.models[plan.source].path("end")
            numbered = {"session_id": model.session_id, "model_seq_id": plan.index}
            route, body = "/load_weights", {**numbered, "path": model.source_path, "optimizer": True}
        answer = await self._client(model).post(route, body, again=self._chance())
        model.create.request_id = answer["request_id"]
        await self._outcome(model, model.create)
        model.model_id = f"{model.session_id}:train:{plan.index}"

    async def _send_all(self, model: ModelRun) -> None:
        """In bursts that arrive in any order; at most PIPELINE commands unanswered."""
        waiting: list[Command] = list(model.plan.commands)
        while waiting:
            burst = [waiting.pop(0) for _ in range(min(model.plan.burst, len(waiting)))]
            # A load names what a save of the same burst publishes: one after the other then.
            steps = [[one] for one in burst] if any(one.kind == "load" for one in burst) else [burst]
            for step in steps:
                if any(one.kind in ("load", "snapshot") for one in step):
                    await asyncio.gather(*(self._outcome(model, done) for done in model.commands if not done.body))
                sent = await asyncio.gather(*(self._send(model, one) for one in step))
                model.commands += sent
                await asyncio.gather(*(self._outcome(model, done) for done in sent if done.command.wait))
            open_ones = [done for done in model.commands if not done.body]
            if len(open_ones) > PIPELINE:
                await self._outcome(model, open_ones[0])

    async def _send(self, model: ModelRun, command: Command) -> Done:
        route, body = request_of(model, command)
        if route == "/save_weights_for_sampler" and not command.name:
            body = {**body, "sampling_session_seq_id": self._sampler_number(model)}
        sent = time.monotonic()
        answer = await self._client(model).post(route, body, again=command.again)
        done = Done(command, answer["request_id"], sent=sent)
        if command.kind == "snapshot":
            await self._sample(model, done)
        return done

    async def _sample(self, model: ModelRun, done: Done) -> None:
        await self._outcome(model, done)
        told = json.loads(done.body)
        if not done.command.samples:
            return
        sampler = told.get("sampling_session_id") or await self._sampler(model, told)
        for number in range(done.command.samples):
            seed = done.command.seed % 1_000_003 + number
            answer = await self._client(model).post(
                "/asample", sample_of(sampler, number + 1, seed), again=self._chance()
            )
            done.samples.append(Sampled(seed, answer["request_id"]))
        for sampled in done.samples:
            sampled.body = await self._client(model).future(sampled.request_id, protobuf=True)

    async def _sampler(self, model: ModelRun, told: Json) -> str:
        if "path" not in told:
            raise ClientSaw(f"snapshot of {model.model_id}: {told}")
        number = self._sampler_number(model)
        body = {"session_id": model.session_id, "sampling_session_seq_id": number, "model_path": told["path"]}
        made = await self._client(model).post("/create_sampling_session", body, again=self._chance())
        return str(made["sampling_session_id"])

    def _sampler_number(self, model: ModelRun) -> int:
        self._sampler_numbers[model.plan.tenant] += 1
        return self._sampler_numbers[model.plan.tenant]

    async def _outcome(self, model: ModelRun, done: Done) -> None:
        if not done.body:
            protobuf = done.command.kind in ("fb", "forward")
            done.body = await self._client(model).future(done.request_id, protobuf=protobuf)
            if done.sent:
                self._settled(done.sent)

    async def _unload(self, model: ModelRun) -> None:
        body = {"model_id": model.model_id, "type": "unload_model"}
        answer = await self._client(model).post("/unload_model", body, again=self._chance())
        told = json.loads(await self._client(model).future(answer["request_id"], protobuf=False))
        if "error" in told:
            raise ClientSaw(f"unload of {model.model_id}: {told}")

    async def _look_again(self, model: ModelRun) -> None:
        client = self._client(model)
        for done in (model.create, *model.commands):
            if done.body:
                await client.outcome_everywhere(done.request_id, protobuf=done.command.kind in ("fb", "forward"))
            for sampled in done.samples:
                if sampled.body:
                    await client.outcome_everywhere(sampled.request_id, protobuf=True)

    def _client(self, model: ModelRun) -> RetryingClient:
        return self._clients[model.plan.tenant]


def request_of(model: ModelRun, command: Command) -> tuple[str, Body]:
    """(route, body) of a training command."""
    named = {"model_id": model.model_id, "seq_id": command.seq}
    match command.kind:
        case "fb" | "bad":
            body = batch(model.model_id, command.seq, command.seed, datums=command.datums, length=command.length)
            return "/forward_backward", _spoiled(body) if command.kind == "bad" else body
        case "forward":
            shape = {"datums": command.datums, "length": command.length}
            return "/forward_backward", batch(model.model_id, command.seq, command.seed, forward_only=True, **shape)
        case "optim":
            return "/optim_step", {**named, "adam_params": {**ADAM, **adam_of(command)}, "type": "optim_step"}
        case "save":
            return "/save_weights", {
                **named,
                "path": command.name,
                "overwrite": command.overwrite,
                "type": "save_weights",
            }
        case "load":
            return "/load_weights", {**named, "path": model.path(command.name), "optimizer": command.optimizer}
        case "snapshot":
            kind = "save_weights_for_sampler"
            path = {"path": command.name} if command.name else {}
            return f"/{kind}", {**named, **path, "kind": "snapshot", "type": kind}
    raise ValueError(command.kind)


def _spoiled(body: bytes) -> bytes:
    """A token outside the vocabulary in the first datum: refused in its turn."""
    from tinkermesh.wire.v1 import wire_pb2 as wire

    request = wire.ForwardBackwardRequest.FromString(body)
    tokens = request.data[0].model_input[0].encoded_text.tokens
    request.data[0].model_input[0].encoded_text.tokens = BAD_TOKEN + tokens[len(BAD_TOKEN) :]
    return request.SerializeToString()
