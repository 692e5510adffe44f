"""MegatronEngine: the Engine port on Megatron-Core. One instance per rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from services.common.datum_blocks import Datum
from services.common.errors import ContractViolation
from services.trainer.engine import Adam, DatumResult, Layout, Loss, SlotDatum, SlotImage, SlotMemory, StepResult
from services.trainer.megatron import adapter_io
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.logprob import OutputHead
from services.trainer.megatron.lora.plan import canonical_names, plan_adapter
from services.trainer.megatron.lora.routing import Routing
from services.trainer.megatron.lora.slots import SlotTable, slot_bytes
from services.trainer.megatron.memory import PeakMemory, free_memory, keep_freed_memory
from services.trainer.megatron.model import build_model
from services.trainer.megatron.optimizer import step_slot
from services.trainer.megatron.passes import PassRunner
from services.trainer.megatron.runtime import Parallelism, start_runtime

WARM_UP_TOKENS = 16
IMAGE_BYTES = 3 * 4
"""Per parameter: weights and two moments, float32."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a rank must know; equal on all ranks.

    `micro_batch_tokens` bounds the tokens of one forward/backward (a longer datum goes alone),
    `logits_memory_bytes` the logits that exist at once. `init_method` is torch.distributed's and
    read only when there is more than one rank. `threads` 0 keeps torch's number of CPU threads.
    Without `train_mlp`, layouts that train the MLP are refused.
    """

    model_dir: Path
    slots: int = 8
    max_rank: int = 32
    micro_batch_tokens: int = 2048
    logits_memory_bytes: int = 64 << 20
    threads: int = 0
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    context_parallel: int = 1
    init_method: str = "env://"
    dtype: str = "float32"
    train_mlp: bool = True

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(
            tensor=self.tensor_parallel,
            data=self.data_parallel,
            pipeline=self.pipeline_parallel,
            expert=self.expert_parallel,
            context=self.context_parallel,
        )


class MegatronEngine:
    """Implements services.trainer.engine.Engine; see the port for the contract of each method."""

    def __init__(self, config: EngineConfig, rank: int = 0, world: int = 1) -> None:
        """Joins the process group and loads the base. Raises InvalidInput for what is not supported."""
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self.runtime = start_runtime(config.parallelism, rank, world, config.init_method)
        self.facts = read_architecture(config.model_dir)
        dtype = DTYPES[config.dtype]
        routing = Routing()
        anchor = torch.zeros(0, device=self.runtime.device, requires_grad=True)
        model = build_model(self.facts, config.model_dir, self.runtime, dtype, routing, anchor)
        head = OutputHead(model.output_layer.weight, self.runtime, config.logits_memory_bytes)
        self.slots = SlotTable(config.slots, self.runtime.device, dtype)
        self._passes = PassRunner(model, head, routing, self.slots, self.facts, self.runtime, config.micro_batch_tokens)
        keep_freed_memory()  # from here on: what loading has freed goes back

    def init_slot(self, slot: int, layout: Layout, seed: int) -> None:
        names = self._check_layout(layout)
        self._assign(slot, SlotImage(layout, adapter_io.initial_weights(names, seed)))

    def clear_slot(self, slot: int) -> None:
        self.slots.clear(slot)

    def run_pass(self, datums: Sequence[SlotDatum], loss: Loss, *, backward: bool) -> list[DatumResult]:
        return self._passes.run(datums, loss, backward=backward)

    def optim_steps(self, steps: Sequence[tuple[int, Adam]]) -> dict[int, StepResult]:
        slots = [(number, self.slots.get(number), adam) for number, adam in steps]
        return {number: step_slot(slot, adam, self.runtime) for number, slot, adam in slots}

    def discard_window(self, slot: int) -> None:
        self.slots.get(slot).clear_window()

    def capture(self, slot: int, *, moments: bool) -> SlotImage:
        state = self.slots.get(slot)
        names = list(canonical_names(self.facts, state.layout))
        return adapter_io.image_of(state, names, self.runtime, moments=moments)

    def expected_shapes(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        return canonical_names(self.facts, layout)

    def restore(self, slot: int, image: SlotImage) -> None:
        self._check_layout(image.layout)
        self._assign(slot, image)

    def pass_peaks(self, lengths: Sequence[int]) -> list[int]:
        self.init_slot(0, self._largest, seed=0)
        try:
            self._probe(WARM_UP_TOKENS)
            peak = PeakMemory(self.runtime.device)
            peaks = [self._peak_of(tokens, peak) for tokens in lengths]  # on every rank, whether it can tell or not
            return peaks if peak.known else []
        finally:
            self.clear_slot(0)

    def _peak_of(self, tokens: int, peak: PeakMemory) -> int:
        self._probe(tokens)
        return peak.grown() if peak.known else 0

    def _probe(self, tokens: int) -> None:
        targets = np.zeros((tokens, 1), np.int32)
        datum = Datum(targets[:, 0], targets, {"weights": np.ones((tokens, 1), np.float32)})
        self.run_pass([SlotDatum(0, datum)], Loss("cross_entropy", {}), backward=True)

    def free_memory(self) -> int:
        """Ranks without a device of their own share the machine's."""
        shared = 1 if self.runtime.device.type == "cuda" else self.runtime.world
        return free_memory(self.runtime.device) // shared

    def slot_memory(self) -> SlotMemory:
        plan = plan_adapter(self.facts, self._largest, self.runtime.tp_size)
        names = canonical_names(self.facts, self._largest).values()
        on_cpu = self.runtime.device.type == "cpu"
        image = IMAGE_BYTES * sum(math.prod(shape) for shape in names) if on_cpu and self.runtime.rank == 0 else 0
        return SlotMemory(slot_bytes(plan, DTYPES[self.config.dtype]), image, lazy=on_cpu)

    @property
    def _largest(self) -> Layout:
        return Layout(self.config.max_rank, float(self.config.max_rank), True, self.config.train_mlp, True)

    def window_open(self, slot: int) -> bool:
        state = self.slots.find(slot)
        return state is not None and state.window is not None

    def slot_digest(self, slot: int) -> str:
        return adapter_io.digest(self.slots.find(slot))

    def window_gradients(self, slot: int) -> dict[str, torch.Tensor]:
        """The open window's complete gradient by PEFT name, on rank 0. Collective; changes nothing."""
        state = self.slots.get(slot)
        flat = torch.zeros_like(state.weights.tensor) if state.window is None else state.window.tensor.clone()
        self.runtime.sum_over_tp(flat[: state.plan.replicated])
        self.runtime.sum_over_dp(flat)
        return adapter_io.gather(flat, state.plan, list(canonical_names(self.facts, state.layout)), self.runtime)

    def _check_layout(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        if not 1 <= layout.rank <= self.config.max_rank:
            raise ContractViolation(f"lora rank {layout.rank} is outside 1..{self.config.max_rank}")
        if layout.train_mlp and not self.config.train_mlp:
            raise ContractViolation("train_mlp: this pool's models do not train the MLP")
        names = canonical_names(self.facts, layout)
        if not names:
            raise ContractViolation("the layout trains nothing: set train_attn, train_mlp or train_unembed")
        return names

    def _assign(self, slot: int, image: SlotImage) -> None:
        plan = plan_adapter(self.facts, image.layout, self.runtime.tp_size)
        state = self.slots.create(slot, image.layout, plan)
        adapter_io.scatter(image.weights, state.weights.tensor, plan, self.runtime)
        adapter_io.scatter(image.exp_avg, state.exp_avg, plan, self.runtime)
        adapter_io.scatter(image.exp_avg_sq, state.exp_avg_sq, plan, self.runtime)
        state.step = image.step if image.exp_avg else 0
        state.refresh_compute()
