"""Two runs of one history on the real trainer: bitwise equal, or within the design's tolerances.

Two runs pack by what has arrived when, so the same command may be computed in different company, and a product
over other rows is rounded otherwise. Where every pass of a model's life so far had the same company in both runs,
those of replays included, bits are demanded: that is what re-forming units as logged promises. Elsewhere the
tolerances of the design hold, each on the norm of what is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.chaos.companies import Companies
from tests.chaos.player import Done, ModelRun, Run

LOGPROBS = 1e-6
GRADIENTS = 1e-6
"""Norm of the difference over the norm."""
WEIGHTS = 1e-3
"""Norm of the difference of final weights over the norm of what training changed."""
MOMENTS = 1e-3
"""The same of Adam's moments: they hold what the weights are made of."""
Array = npt.NDArray[np.float32]
_BATCHES = ("fb", "forward", "bad")


@dataclass(slots=True)
class Comparison:
    """Results and tensors: `bitwise` were equal, `demanded` of them had to be, `within` were nearly."""

    violations: list[str] = field(default_factory=list)
    bitwise: int = 0
    demanded: int = 0
    within: int = 0
    largest: dict[str, float] = field(default_factory=dict)

    def look(self, what: str, kind: str, difference: float, limit: float, *, equal: bool, exact: bool) -> None:
        self.bitwise += equal
        self.demanded += exact
        self.largest[kind] = max(self.largest.get(kind, 0.0), difference)
        if exact and not equal:
            self.violations.append(
                f"{what}: {kind} differ by {difference:.3g} although all passes had the same company"
            )
        elif difference > limit or not np.isfinite(difference):
            self.violations.append(f"{what}: {kind} differ by {difference:.3g}, allowed are {limit:g}")
        elif not equal:
            self.within += 1


@dataclass(slots=True)
class Exactness:
    """Of one model's state while its commands are gone through; `saved`: of its checkpoints by name."""

    now: bool
    saved: dict[str, bool] = field(default_factory=dict)


class Comparing:
    """`companies` of the calm and of the stormy run."""

    def __init__(self, store: Path, companies: tuple[Companies, Companies]) -> None:
        self.made = Comparison()
        self._store = store
        self._calm, self._stormy = companies
        self._ends: dict[int, bool] = {}  # by model: whether its checkpoint "end" had to be equal

    def runs(self, calm: Run, stormy: Run) -> Comparison:
        for first, second in zip(calm.models, stormy.models, strict=True):
            exact = Exactness(self._ends.get(second.plan.source, True))
            for one, two in zip(first.commands, second.commands, strict=False):
                self._command(second, one, two, exact)
            if len(first.commands) != len(second.commands):
                told = f"{second.model_id}: {len(second.commands)} of {len(first.commands)} commands"
                self.made.violations.append(told)
            self._ends[second.plan.index] = exact.saved.get("end", False)
            self._checkpoints(first, second, exact)
        return self.made

    def _same_company(self, index: int, seq: int) -> bool:
        """Also of a command that no pass held: it was refused before."""
        one, two = self._calm.get((index, seq), set()), self._stormy.get((index, seq), set())
        return one == two and len(one) <= 1

    def _command(self, model: ModelRun, calm: Done, stormy: Done, exact: Exactness) -> None:
        command = stormy.command
        what, here = f"{model.model_id} seq {command.seq} ({command.kind})", False
        if command.kind in _BATCHES:
            here = exact.now and self._same_company(model.plan.index, command.seq)
            exact.now = here or (exact.now and command.kind == "forward")  # which changes nothing
        elif command.kind == "save":
            exact.saved[command.name] = exact.now
        elif command.kind == "load":
            exact.now = exact.saved.get(command.name, False)
        if _failed(calm) or _failed(stormy):
            if _category(calm.body) != _category(stormy.body):
                self.made.violations.append(f"{what}: {stormy.body[:200]!r} instead of {calm.body[:200]!r}")
        elif command.kind in ("fb", "forward"):
            self._logprobs(what, _logprobs(calm.body), _logprobs(stormy.body), exact=here)
        elif command.kind == "optim":
            one, two = (json.loads(done.body)["metrics"].get("grad_norm", 0.0) for done in (calm, stormy))
            relative = abs(one - two) / max(abs(one), 1e-12)
            self.made.look(what, "gradient norms", relative, GRADIENTS, equal=one == two, exact=exact.now)

    def _logprobs(self, what: str, one: Array, two: Array, *, exact: bool) -> None:
        same = one.shape == two.shape
        difference = _norm([one - two]) / max(_norm([one]), 1e-12) if same else float("inf")
        equal = same and one.tobytes() == two.tobytes()
        self.made.look(what, "logprobs", difference, LOGPROBS, equal=equal, exact=exact)

    def _checkpoints(self, calm: ModelRun, stormy: ModelRun, exact: Exactness) -> None:
        for name, demanded in exact.saved.items():
            one, two = (_directory(self._store, model, name) for model in (calm, stormy))
            for file in sorted(path.name for path in one.glob("*.safetensors")):
                what = f"{stormy.model_id} {name}/{file}"
                self._tensors(what, load_file(one / file), load_file(two / file), exact=demanded)
            steps = [json.loads((directory / "meta.json").read_bytes())["optimizer_step"] for directory in (one, two)]
            if steps[0] != steps[1]:
                told = f"{stormy.model_id} {name}: {steps[1]} optimizer steps instead of {steps[0]}"
                self.made.violations.append(told)

    def _tensors(self, what: str, calm: Mapping[str, Array], stormy: Mapping[str, Array], *, exact: bool) -> None:
        """Over all tensors of a kind at once: single ones may be nearly zero."""
        if calm.keys() != stormy.keys():
            self.made.violations.append(f"{what}: other tensors")
            return
        for kind, limit in (("weights", WEIGHTS), ("exp_avg", MOMENTS), ("exp_avg_sq", MOMENTS)):
            names = [name for name in calm if _kind(name) == kind]
            if names:
                changed = _norm([calm[name] for name in names if kind != "weights" or "lora_A" not in name])
                difference = _norm([calm[name] - stormy[name] for name in names]) / max(changed, 1e-12)
                equal = all(calm[name].tobytes() == stormy[name].tobytes() for name in names)
                self.made.look(what, kind, difference, limit, equal=equal, exact=exact)


def compare(calm: Run, stormy: Run, store: Path, companies: tuple[Companies, Companies]) -> Comparison:
    return Comparing(store, companies).runs(calm, stormy)


def _kind(name: str) -> str:
    """Of a tensor in a checkpoint. Of weights, B starts at zero, so its norm is what training changed."""
    prefix = name.partition(".")[0]
    return prefix if prefix in ("exp_avg", "exp_avg_sq") else "weights"


def _norm(parts: list[Array]) -> float:
    return float(np.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in parts)))


def _failed(done: Done) -> bool:
    return not done.body or b'"error"' in done.body[:200]


def _category(body: bytes) -> str:
    return str(json.loads(body or b"{}").get("category", "")) if body[:1] in (b"{", b"") else "succeeded"


def _logprobs(body: bytes) -> Array:
    output = wire.ForwardBackwardOutput.FromString(body)
    return np.frombuffer(b"".join(record.fields["logprobs"].data for record in output.loss_fn_outputs), "<f4")


def _directory(store: Path, model: ModelRun, name: str) -> Path:
    return (store / public_directory(parse_tinker_path(model.path(name)))).resolve()
