"""The trainer's numeric engine: packed adapters, ragged batches, and transformers + PEFT beside it.

    python -m benchmarks.trainer_engine [--quick] [--model DIRECTORY] [--threads N]

Every ratio is taken within one repetition of interleaved runs in one process. A run is one
forward and backward of cross-entropy in fp32 with fixed rank-8 adapters on all seven layers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.figure import Figure, emit
from benchmarks.interleave import interleave, ratio
from benchmarks.peft_reference import PeftReference
from services.common.datum_blocks import Datum
from services.local.default_model import ensure
from services.trainer.engine import Layout, Loss, SlotDatum
from services.trainer.megatron.engine import EngineConfig, MegatronEngine

ADAPTERS, RANK = 8, 8
LOSS = Loss("cross_entropy", {})
LAYOUT = Layout(RANK, 32.0, train_attn=True, train_mlp=True, train_unembed=False)
RAGGED = (256, 190, 120, 90, 70, 48, 36, 24)  # 834 tokens; 2,048 when padded


class Workload:
    """The engine, the reference and the datums they share."""

    def __init__(self, model: Path, threads: int) -> None:
        self.engine = MegatronEngine(EngineConfig(model, slots=ADAPTERS, threads=threads))
        for slot in range(ADAPTERS):
            self.engine.init_slot(slot, LAYOUT, seed=slot)
        self.peft = PeftReference(model, ADAPTERS, RANK, self.engine.runtime, self.engine.config.logits_memory_bytes)
        rng = np.random.default_rng(0)
        vocab = self.engine.facts.vocab
        self.equal = [datum(rng, 256, vocab) for _ in range(ADAPTERS)]
        self.ragged = [datum(rng, length, vocab) for length in RAGGED]
        self.short = [datum(rng, 16, vocab) for _ in range(ADAPTERS)]

    def run(self, items: Sequence[SlotDatum]) -> None:
        self.engine.run_pass(items, LOSS, backward=True)

    def one(self, datums: Sequence[Datum]) -> None:
        self.run([SlotDatum(0, item) for item in datums])

    def packed(self, datums: Sequence[Datum]) -> None:
        self.run([SlotDatum(slot, item) for slot, item in enumerate(datums)])

    def in_turn(self, datums: Sequence[Datum]) -> None:
        for slot, item in enumerate(datums):
            self.run([SlotDatum(slot, item)])


def datum(rng: np.random.Generator, length: int, vocab: int) -> Datum:
    return Datum(
        rng.integers(0, vocab, length).astype(np.int32),
        rng.integers(0, vocab, (length, 1)).astype(np.int32),
        {"weights": np.ones((length, 1), np.float32)},
    )


def timed(action: Callable[[], object]) -> Callable[[], float]:
    """Seconds of one call by CLOCK."""

    def run() -> float:
        start = CLOCK()
        action()
        return CLOCK() - start

    return run


# Replaced by the process's CPU time with --clock cpu.
CLOCK: Callable[[], float] = time.perf_counter


def gemm_peak() -> float:
    """FLOP/s of the machine's fp32 GEMM at a shape it likes."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    torch.mm(a, b)
    seconds = timed(lambda: torch.mm(a, b))
    return 2 * 2048**3 / min(seconds() for _ in range(5))


def flops_per_token(engine: MegatronEngine) -> float:
    """Forward and backward over the frozen base: two GEMMs of every weight matrix, head included."""
    facts = engine.facts
    layer = facts.hidden * (2 * facts.query_size + 2 * facts.kv_size + 3 * facts.ffn)
    return 4.0 * (facts.layers * layer + facts.hidden * facts.vocab)


def _variants(load: Workload) -> dict[str, Callable[[], float]]:
    eight, ragged, short = load.equal, load.ragged, load.short
    variants = {
        "one": lambda: load.one(eight),
        "packed": lambda: load.packed(eight),
        "peft": lambda: load.peft.one_adapter(eight),
        "peft mixed": lambda: load.peft.mixed_adapters(eight, range(ADAPTERS)),
        "ragged": lambda: load.one(ragged),
        "peft padded": lambda: load.peft.one_adapter(ragged),
        "short packed": lambda: load.packed(short),
        "short in turn": lambda: load.in_turn(short),
    }
    return {**{name: timed(action) for name, action in variants.items()}, "peak": gemm_peak}


def measure(load: Workload, repetitions: int, warmup: int) -> list[Figure]:
    seconds = interleave(_variants(load), repetitions, warmup)
    tokens = ADAPTERS * 256
    rate = flops_per_token(load.engine) * tokens
    share = [rate / s / peak for s, peak in zip(seconds["one"], seconds["peak"], strict=True)]
    return [
        Figure("trainer, 1 adapter, 8x256 tokens", [tokens / s for s in seconds["one"]], "tokens/s"),
        Figure("share of the fp32 GEMM peak", share, "ratio", note=f"peak {max(seconds['peak']) / 1e9:.0f} GFLOP/s"),
        Figure("8 adapters packed vs 1 adapter, 8x256", ratio(seconds, "one", "packed"), "ratio", ">= 0.95"),
        Figure("vs transformers+PEFT, 1 adapter, same loss path", ratio(seconds, "peft", "one"), "ratio", ">= 1.0"),
        Figure("ragged 834 tokens vs PEFT padded", ratio(seconds, "peft padded", "ragged"), "ratio", ">= 1.5"),
        Figure("8 adapters vs PEFT mixed adapters", ratio(seconds, "peft mixed", "packed"), "ratio", ">= 1.4"),
        Figure(
            "8 tenants x 16 tokens, packed vs in turn",
            ratio(seconds, "short in turn", "short packed"),
            "ratio",
            ">= 2.3",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition without warm-up")
    parser.add_argument("--model", type=Path, help="base model; default: the local default model")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine, with --threads 1"
    )
    arguments = parser.parse_args()
    if arguments.clock == "cpu":
        global CLOCK
        CLOCK = time.process_time
    warnings.simplefilter("ignore")
    load = Workload(arguments.model or ensure(), arguments.threads)
    figures = measure(load, repetitions=1 if arguments.quick else 5, warmup=0 if arguments.quick else 1)
    for figure in figures:
        low, high = figure.spread
        sys.stderr.write(f"{figure.name}: {figure.value:.3f} {figure.unit} [{low:.3f}, {high:.3f}] {figure.target}\n")
    emit(figures)


if __name__ == "__main__":
    main()
