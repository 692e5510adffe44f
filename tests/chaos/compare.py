"""Two runs of one history on the real trainer: bitwise equal, or within the design's tolerances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.chaos.player import Done, ModelRun, Run

LOGPROBS = 1e-4
"""|difference| of a logprob, nats: 1e-6 of rounding per pass, amplified by Adam over the steps of a history."""
UPDATE = 1e-2
"""Norm of the difference of final weights over the norm of what training changed: 1e-3 a step, some steps."""
Array = npt.NDArray[np.float32]


@dataclass(slots=True)
class Comparison:
    """`bitwise` and `within`: how many results and tensors were equal, and how many nearly."""

    violations: list[str] = field(default_factory=list)
    bitwise: int = 0
    within: int = 0
    largest: dict[str, float] = field(default_factory=dict)

    def look(self, what: str, kind: str, difference: float, limit: float, *, equal: bool) -> None:
        self.bitwise += equal
        self.largest[kind] = max(self.largest.get(kind, 0.0), difference)
        if difference > limit or not np.isfinite(difference):
            self.violations.append(f"{what}: {kind} differ by {difference:.3g}, allowed are {limit:g}")
        elif not equal:
            self.within += 1


def compare(calm: Run, stormy: Run, store: Path) -> Comparison:
    made = Comparison()
    for first, second in zip(calm.models, stormy.models, strict=True):
        for one, two in zip(first.commands, second.commands, strict=False):
            _command(made, f"{second.model_id} seq {two.command.seq} ({two.command.kind})", one, two)
        if len(first.commands) != len(second.commands):
            made.violations.append(f"{second.model_id}: {len(second.commands)} of {len(first.commands)} commands")
        _checkpoints(made, first, second, store)
    return made


def _command(made: Comparison, what: str, calm: Done, stormy: Done) -> None:
    if _failed(calm) or _failed(stormy):
        if _category(calm.body) != _category(stormy.body):
            made.violations.append(f"{what}: {stormy.body[:200]!r} instead of {calm.body[:200]!r}")
    elif calm.command.kind in ("fb", "forward"):
        one, two = _logprobs(calm.body), _logprobs(stormy.body)
        same = one.shape == two.shape
        difference = float(np.abs(one - two).max()) if same else float("inf")
        made.look(what, "logprobs", difference, LOGPROBS, equal=same and one.tobytes() == two.tobytes())
    elif calm.command.kind == "optim":
        norms = [json.loads(done.body)["metrics"].get("grad_norm", 0.0) for done in (calm, stormy)]
        relative = abs(norms[0] - norms[1]) / max(abs(norms[0]), 1e-12)
        made.look(what, "gradient norms", relative, UPDATE, equal=norms[0] == norms[1])


def _failed(done: Done) -> bool:
    return not done.body or b'"error"' in done.body[:200]


def _category(body: bytes) -> str:
    return str(json.loads(body or b"{}").get("category", "")) if body[:1] in (b"{", b"") else "succeeded"


def _logprobs(body: bytes) -> Array:
    output = wire.ForwardBackwardOutput.FromString(body)
    return np.frombuffer(b"".join(record.fields["logprobs"].data for record in output.loss_fn_outputs), "<f4")


def _checkpoints(made: Comparison, calm: ModelRun, stormy: ModelRun, store: Path) -> None:
    names = [done.command.name for done in stormy.commands if done.command.kind == "save"]
    for name in names:
        one, two = (_directory(store, model, name) for model in (calm, stormy))
        for file in sorted(path.name for path in one.glob("*.safetensors")):
            _tensors(made, f"{stormy.model_id} {name}/{file}", load_file(one / file), load_file(two / file))
        steps = [json.loads((directory / "meta.json").read_bytes())["optimizer_step"] for directory in (one, two)]
        if steps[0] != steps[1]:
            made.violations.append(f"{stormy.model_id} {name}: {steps[1]} optimizer steps instead of {steps[0]}")


def _directory(store: Path, model: ModelRun, name: str) -> Path:
    return (store / public_directory(parse_tinker_path(model.path(name)))).resolve()


def _tensors(made: Comparison, what: str, calm: dict[str, Array], stormy: dict[str, Array]) -> None:
    """Over all tensors at once: single ones may be nearly zero."""
    if calm.keys() != stormy.keys():
        made.violations.append(f"{what}: other tensors")
        return
    changed = np.sqrt(sum(float((calm[name] ** 2).sum()) for name in _trained(calm)))
    difference = np.sqrt(sum(float(((calm[name] - stormy[name]) ** 2).sum()) for name in calm))
    equal = all(calm[name].tobytes() == stormy[name].tobytes() for name in calm)
    made.look(what, "tensors", float(difference / max(changed, 1e-12)), UPDATE, equal=equal)


def _trained(tensors: dict[str, Array]) -> Iterator[str]:
    """B starts at zero, moments do too: their norm is what training changed."""
    yield from (name for name in tensors if "lora_A" not in name or "exp_avg" in name)
