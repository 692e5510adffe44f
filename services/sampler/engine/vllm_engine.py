"""The Engine port on vLLM, in this process."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any, cast

import vllm
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from services.common.errors import InvalidInput
from services.sampler.engine import clean_blocks, cpu_experts, lora_ops, prompt_logprobs, seeded_chunks, zero_adapter
from services.sampler.engine.config import EngineConfig, engine_args
from services.sampler.engine.driver import EngineDriver, Output
from services.sampler.engine.kv_legs import KvLegs
from services.sampler.engine.outputs import Finished, generated_sequence, sequence_delta
from services.sampler.engine.prompt_reading import GREEDY_BELOW, NAME, Reading, Readings
from services.sampler.engine.tokenizer import ModelTokenizer
from services.sampler.kv_connector.tier import KvTier
from services.sampler.ports import EngineAdapter, EngineDead, GeneratedSequence, SequenceDelta, SequenceRequest

log = logging.getLogger(__name__)

NAME_AND_VERSION = f"vllm {vllm.__version__}"


class VllmSteps:
    """vLLM's synchronous engine as the driver's thread sees it."""

    def __init__(self, config: EngineConfig, legs: KvLegs | None = None) -> None:
        clean_blocks.enable()
        cpu_experts.enable()
        self._legs = legs
        self.engine = LLMEngine.from_engine_args(engine_args(config))
        self.engine.collective_rpc(lora_ops.install)
        self.readings: Readings = {}
        self.engine.collective_rpc(prompt_logprobs.install, args=(self.readings,))
        self.engine.collective_rpc(seeded_chunks.install)
        if legs is not None:
            legs.attach(self.engine, NAME_AND_VERSION, config.dtype)

    def unfinished(self) -> bool:
        return bool(self.engine.has_unfinished_requests())

    def step(self) -> list[Output]:
        return [Output(o.request_id, self._told(o), o.finished) for o in self.engine.step()]

    def _told(self, output: RequestOutput) -> Finished:
        return Finished(output, self.readings.pop(output.request_id, None) if output.finished else None)

    def abort(self, sequence_id: str) -> None:
        self.engine.abort_request([sequence_id])
        self.readings.pop(sequence_id, None)

    def close(self) -> None:
        self.engine.engine_core.shutdown()

    def submit(self, request: SequenceRequest, base: EngineAdapter, kind: RequestOutputKind) -> None:
        """Raises InvalidInput for what vLLM refuses."""
        try:
            self._submit(request, base, kind)
        except (VLLMClientError, ValueError, TypeError) as error:
            raise InvalidInput(f"the engine refuses the request: {error}") from error

    def _submit(self, request: SequenceRequest, base: EngineAdapter, kind: RequestOutputKind) -> None:
        if request.query is not None:
            self.readings[request.sequence_id] = Reading(request.query, len(request.prompt))
        try:
            self.engine.add_request(
                request.sequence_id,
                tokens_input(request.prompt, cache_salt=request.cache_salt or None),
                sampling_params(request, kind, self._legs.extra_args(request) if self._legs is not None else {}),
                lora_request=self._lora(request.adapter or base),
            )
        except BaseException:
            self.readings.pop(request.sequence_id, None)
            raise

    def add_adapter(self, adapter: EngineAdapter) -> None:
        try:
            self.engine.add_lora(lora_request(adapter))
        except Exception:  # re-raised below
            # A failure in activation leaves the id registered, in a buffer.
            self.engine.remove_lora(adapter.engine_id)
            raise

    def _lora(self, adapter: EngineAdapter) -> LoRARequest:
        return self._legs.lora(adapter) if self._legs is not None else lora_request(adapter)

    def counts(self) -> tuple[int, int]:
        scheduler = self.engine.engine_core.engine_core.scheduler
        return cast("tuple[int, int]", scheduler.get_request_counts())


def lora_request(adapter: EngineAdapter) -> LoRARequest:
    # The prefix cache is keyed by name and path: with the id in the name no load can ever
    # meet blocks of another one.
    return LoRARequest(f"{adapter.name}#{adapter.engine_id}", adapter.engine_id, str(adapter.directory))


def sampling_params(request: SequenceRequest, kind: RequestOutputKind, extra_args: dict[str, Any]) -> SamplingParams:
    greedy = request.temperature < GREEDY_BELOW
    params = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=0.0 if greedy else 1.0,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        stop=list(request.stop_strings),
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=True,
        # Only stop strings need text; they may hold special tokens.
        detokenize=bool(request.stop_strings),
        skip_special_tokens=False,
        logprobs=request.topk,
        prompt_logprobs=request.prompt_topk,
        flat_logprobs=True,
        output_kind=kind,
        skip_clone=True,
        extra_args=extra_args | ({NAME: request.sequence_id} if request.query is not None else {}) or None,
    )
    if not greedy:
        # vLLM's constructor refuses temperatures above 2 and raises those below 0.01.
        params.temperature = request.temperature
    return params


class VllmEngine:
    """Start with `await start()`, end with `await stop()`."""

    description = NAME_AND_VERSION

    def __init__(self, config: EngineConfig, stall_seconds: float) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="tinkermesh-base-", ignore_cleanup_errors=True)
        self._config = config
        self._base = zero_adapter.base_adapter(Path(self._scratch.name))
        self._driver = EngineDriver(self._build, stall_seconds)
        self._legs = KvLegs(config.kv, config.block_size) if config.kv is not None else None
        self._steps: VllmSteps
        self.tokenizer: ModelTokenizer

    @property
    def tier(self) -> KvTier | None:
        return self._legs.tier if self._legs is not None else None

    async def start(self) -> None:
        """Raises what the engine's start raised."""
        await self._driver.start()
        log.info("engine %s is ready", self.description)

    async def stop(self, timeout_seconds: float) -> bool:
        ended = await self._driver.stop(timeout_seconds)
        if self._legs is not None:
            await asyncio.to_thread(self._legs.stop)
        self._scratch.cleanup()
        return ended

    def counts(self) -> tuple[int, int]:
        return self._steps.counts()

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        if self._legs is not None:
            await asyncio.to_thread(self._legs.learn, adapter)
        try:
            await self._driver.call(lambda: self._steps.add_adapter(adapter))
        except EngineDead:
            raise
        except Exception as error:  # noqa: BLE001 - the engine's boundary: vLLM raises anything for a bad adapter
            log.exception("the engine does not load adapter %s", adapter.name)  # its text names paths of this machine
            self._forget(adapter)
            cause = type(error).__name__
            raise InvalidInput(
                f"adapter {adapter.name} cannot be loaded ({cause}); the sampler's log has the cause"
            ) from error

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        await self._driver.call(lambda: self._steps.engine.remove_lora(adapter.engine_id))
        self._forget(adapter)

    def _forget(self, adapter: EngineAdapter) -> None:
        if self._legs is not None:
            self._legs.forget(adapter)

    async def generate(self, request: SequenceRequest) -> GeneratedSequence:
        kind = RequestOutputKind.FINAL_ONLY
        async with self._leg(request):
            output = await self._driver.run(request.sequence_id, lambda: self._steps.submit(request, self._base, kind))
        return generated_sequence(request, cast("Finished", output))

    async def stream(self, request: SequenceRequest) -> AsyncGenerator[SequenceDelta, None]:
        kind = RequestOutputKind.DELTA
        told = self._driver.stream(request.sequence_id, lambda: self._steps.submit(request, self._base, kind))
        async with self._leg(request), aclosing(told) as outputs:
            async for output in outputs:
                yield sequence_delta(request, cast("Finished", output).output)

    def _leg(self, request: SequenceRequest) -> AbstractAsyncContextManager[None]:
        """Around all the engine does for a request."""
        return self._legs.around(request) if self._legs is not None else nullcontext()

    async def wait_dead(self) -> EngineDead:
        return await self._driver.wait_dead()

    def _build(self) -> VllmSteps:
        zero_adapter.write_zero_adapter(self._config.model, self._base.directory)
        self.tokenizer = ModelTokenizer(self._config.model)
        self._steps = VllmSteps(self._config, self._legs)
        self._steps.add_adapter(self._base)
        self._steps.engine.pin_lora(self._base.engine_id)
        return self._steps
