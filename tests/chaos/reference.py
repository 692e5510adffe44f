"""What a history must come to: a model of the mesh in a few lines, on the double's arithmetic.

It knows nothing of gateways, queues, units or deaths: each model is one sequence of commands that
take effect one after the other, exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.datum_blocks import Datum
from tests.chaos.history import Command, ModelPlan
from tests.doubles import arithmetic, generation
from tests.doubles.arithmetic import SlotWeights
from tests.doubles.fake_trainer import trainer_facts
from tests.doubles.wire_client import Json, batch
from tests.mesh.main_path import sample

ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
BAD_TOKEN = (1 << 20).to_bytes(4, "little")
PROMPT = (1, 2, 3)
SAMPLE_TOKENS = 5
State = dict[str, object]


def adam_of(command: Command) -> dict[str, float]:
    return {"learning_rate": (command.seed % 1000 + 1) / 1e6}


def sample_of(sampler: str, seq: int, seed: int) -> Json:
    return sample(sampler, seq, prompt=PROMPT, n=2, tokens=SAMPLE_TOKENS, seed=seed)


@dataclass(slots=True)
class Expected:
    """Of one command; what is None is not looked at."""

    logprobs: list[bytes] | None = None
    losses: list[float] | None = None
    metrics: dict[str, float] | None = None
    user_failure: bool = False
    state: State | None = None
    sampler_weights: int | None = None


@dataclass(slots=True)
class Reference:
    """One model. `saved`: name -> state of its checkpoints."""

    slot: SlotWeights
    saved: dict[str, State] = field(default_factory=dict)
    rejected: int = 0

    @classmethod
    def created(cls, plan: ModelPlan) -> Reference:
        return cls(arithmetic.fresh(layout_of(plan), plan.seed))

    @classmethod
    def loaded(cls, plan: ModelPlan, state: State, *, optimizer: bool) -> Reference:
        return cls(arithmetic.restored(layout_of(plan), state, optimizer=optimizer))

    def apply(self, command: Command) -> Expected:
        match command.kind:
            case "fb" | "forward":
                return self._batch(command)
            case "bad":
                self.rejected += 1
                return Expected(user_failure=True)
            case "optim":
                return self._optim(command)
            case "save":
                self.saved[command.name] = self.slot.state(moments=True)
                return Expected(state=self.saved[command.name])
            case "load":
                layout = self.slot.layout
                self.slot = arithmetic.restored(layout, self.saved[command.name], optimizer=command.optimizer)
                self.rejected = 0
                return Expected()
            case "snapshot":
                return Expected(sampler_weights=self.slot.weights)
        raise ValueError(command.kind)

    def _batch(self, command: Command) -> Expected:
        datums = datums_of(command)
        scores = [arithmetic.logprobs(self.slot.weights, datum) for datum in datums]
        if command.kind == "fb":
            for datum in datums:
                arithmetic.accumulate(self.slot, datum, types.LossConfig(loss_fn="cross_entropy"))
        losses = [arithmetic.loss(datum, one) for datum, one in zip(datums, scores, strict=True)]
        return Expected(logprobs=[one.tobytes() for one in scores], losses=losses)

    def _optim(self, command: Command) -> Expected:
        metrics = arithmetic.optim_step(self.slot, types.AdamParams(**ADAM, **adam_of(command)))
        if self.rejected:
            metrics["window_rejected_requests"] = float(self.rejected)
        self.rejected = 0
        return Expected(metrics=metrics)


def layout_of(plan: ModelPlan) -> types.AdapterLayout:
    alpha = trainer_facts().alpha
    return types.AdapterLayout(rank=plan.rank, alpha=alpha, train_attn=True, train_mlp=True, train_unembed=True)


def datums_of(command: Command) -> list[Datum]:
    """As the gateway makes them of the client's body."""
    body = batch("m", 1, command.seed, datums=command.datums, length=command.length)
    return [_datum(datum) for datum in wire.ForwardBackwardRequest.FromString(body).data]


def _datum(datum: wire.Datum) -> Datum:
    targets = np.frombuffer(datum.loss_fn_inputs["target_tokens"].dense, "<i8").astype("<i4")[:, None]
    weights = np.frombuffer(datum.loss_fn_inputs["weights"].dense, "<f4")[:, None]
    return Datum(np.frombuffer(datum.model_input[0].encoded_text.tokens, "<i4"), targets, {"weights": weights})


def expected_sequences(weights: int, seed: int) -> list[tuple[bytes, bytes]]:
    """(tokens, logprobs) of each sequence of `sample_of`."""
    body = types.SampleBody(
        prompt_tokens=np.array(PROMPT, "<i4").tobytes(),
        num_samples=2,
        max_tokens=SAMPLE_TOKENS,
        seed=seed,
        temperature=1.0,
    )
    made = generation.result(weights, body, seed)
    return [(one.tokens, one.logprobs) for one in made.sequences]
