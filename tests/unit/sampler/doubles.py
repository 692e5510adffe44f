"""Doubles of the engine side: adapters as names, sequences that finish when told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from services.common.errors import InvalidInput
from services.sampler.ports import EngineAdapter, EngineDead, GeneratedSequence, SequenceDelta, SequenceRequest, Tier
from tests.doubles.tokenizer import WordTokenizer

LINEAR = {"model.layers.0.self_attn.q_proj": (6, 4), "lm_head": (12, 4)}


def write_adapter(directory: Path, *, rank: int = 2, **config: object) -> Path:
    """A valid adapter for LINEAR; `config` overrides entries of adapter_config.json."""
    directory.mkdir(parents=True)
    tensors = {}
    for module, (out_features, in_features) in LINEAR.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = np.zeros((rank, in_features), np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = np.zeros((out_features, rank), np.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 32, "bias": "none", **config}
    (directory / "adapter_config.json").write_text(json.dumps(values))
    return directory


def write_model(directory: Path) -> Path:
    """A base model as far as the service half reads it: config and the matrices of LINEAR."""
    directory.mkdir(parents=True)
    config = {"architectures": ["X"], "vocab_size": 100, "max_position_embeddings": 50}
    (directory / "config.json").write_text(json.dumps(config))
    weights = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in LINEAR.items()}
    save_file(weights, directory / "model.safetensors")
    return directory


def generated(request: SequenceRequest, finish: str = "length") -> GeneratedSequence:
    count = request.max_tokens
    return GeneratedSequence(
        tokens=np.arange(count, dtype=np.int32),
        logprobs=np.full(count, -0.5, np.float32),
        finish=finish,
        topk=None,
        prompt_logprobs=None if request.prompt_topk is None else np.zeros(len(request.prompt), np.float32),
        prompt_topk=None,
        cached_tokens=0,
    )


@dataclass
class FakeEngine:
    """`gate` holds every generation, a stream's after `told` tokens; `refused`, `script`, `finish` steer."""

    description: str = "double 1"
    loaded: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    finish: str = "length"
    script: list[int] = field(default_factory=list)
    """Tokens that a stream generates, instead of 0, 1, 2, …"""
    told: int = 0
    per_delta: int = 1
    failure: Exception | None = None
    """Raised by a stream behind its finish."""
    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)
    tier: Tier | None = None
    running: int = 0
    most_loaded: int = 0
    started: bool = False

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.load_gate = asyncio.Event()
        self.load_gate.set()
        self.dead: asyncio.Future[EngineDead] = asyncio.get_running_loop().create_future()

    def counts(self) -> tuple[int, int]:
        return self.running, 0

    async def start(self) -> None:
        self.started = True

    async def stop(self, timeout_seconds: float) -> bool:
        self.events.append("stop")
        return True

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        self.events.append(f"add {adapter.name}")
        await self.load_gate.wait()
        if adapter.name in self.refused:
            raise InvalidInput(f"adapter {adapter.name} is refused")
        self.loaded.append(adapter.engine_id)
        self.most_loaded = max(self.most_loaded, len(self.loaded))

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        self.events.append(f"remove {adapter.name}")
        await asyncio.sleep(0)
        self.loaded.remove(adapter.engine_id)

    async def generate(self, request: SequenceRequest) -> GeneratedSequence:
        if request.adapter is not None and request.adapter.engine_id not in self.loaded:
            raise EngineDead(f"adapter {request.adapter.name} is not loaded")
        self.running += 1
        try:
            await self._at_gate()
            return generated(request, self.finish)
        finally:
            self.running -= 1
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self.events.append(f"abort {request.sequence_id}")

    async def stream(self, request: SequenceRequest) -> AsyncGenerator[SequenceDelta, None]:
        """`per_delta` tokens at a time, token n with logprob -n - 0.5."""
        tokens, finish = self.script or list(range(request.max_tokens)), ""
        self.running += 1
        try:
            for at in range(0, len(tokens), self.per_delta):
                if at >= self.told:
                    await self._at_gate()
                gained = tokens[at : at + self.per_delta]
                finish = self.finish if at + len(gained) == len(tokens) else ""
                yield SequenceDelta(
                    np.int32(gained), -np.arange(at, at + len(gained)) - np.float32(0.5), finish, None, 3
                )
            if self.failure is not None:
                raise self.failure
        finally:
            self.running -= 1
            if not finish:
                self.events.append(f"abort {request.sequence_id}")

    async def _at_gate(self) -> None:
        waiting = [asyncio.ensure_future(self.gate.wait()), self.dead]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting[0].cancel()
        if self.dead.done():
            raise EngineDead(self.dead.result().message)

    async def wait_dead(self) -> EngineDead:
        return await asyncio.shield(self.dead)
