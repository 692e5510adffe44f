"""A snapshot as the trainer exports it, and the trainer's own numbers for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.common.datum_blocks import Datum
from services.trainer.engine import Layout
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from tests.unit.trainer import reference
from tests.unit.trainer.rig import ADAM, CROSS_ENTROPY, on_slot, randomize, supervised, whole_vocabulary


@dataclass(frozen=True, slots=True)
class Trained:
    engine: MegatronEngine

    @classmethod
    def snapshot(cls, model: Path, directory: Path, layout: Layout) -> Trained:
        """Two steps from a random adapter, exported to `directory`."""
        engine = MegatronEngine(EngineConfig(model, slots=1, threads=1))
        randomize(engine, 0, layout, seed=21, scale=0.02)
        for seed in (1, 2):
            datum = supervised(seed, 24, vocab=engine.facts.vocab)
            engine.run_pass(on_slot(0, datum), CROSS_ENTROPY, backward=True)
            engine.optim_steps([(0, ADAM)])
        reference.write_adapter(engine.capture(0, moments=False), model, directory)
        return cls(engine)

    def logprobs(self, tokens: list[int]) -> np.ndarray:
        """float32 [len(tokens) - 1]: of each token given those before it."""
        targets = np.asarray(tokens[1:], np.int32)[:, None]
        datum = Datum(np.asarray(tokens[:-1], np.int32), targets, {"weights": np.ones(targets.shape, np.float32)})
        result = self.engine.run_pass(on_slot(0, datum), CROSS_ENTROPY, backward=False)[0]
        return result.logprobs[:, 0]

    def vocabulary(self, tokens: list[int]) -> np.ndarray:
        """float32 [len(tokens), vocabulary]: of every token after each of these."""
        datum = whole_vocabulary(np.asarray(tokens, np.int32), self.engine.facts.vocab)
        return self.engine.run_pass(on_slot(0, datum), CROSS_ENTROPY, backward=False)[0].logprobs
