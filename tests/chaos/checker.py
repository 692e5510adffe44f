"""Compares what clients were answered, and what lies in the store, with the reference."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import TinkermeshError
from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.chaos.history import Command
from tests.chaos.player import Done, ModelRun, Run
from tests.chaos.reference import Expected, Reference, State, expected_sequences
from tests.doubles.published import read_state


def violations(run: Run, store: Path) -> list[str]:
    """What no mesh that loses nothing shows; [] = all is well."""
    found = list(run.seen.violations)
    references: dict[int, Reference] = {}
    for model in run.models:
        found += [f"{model.model_id or model.plan.index}: {text}" for text in _model(model, references, store)]
    return found


def _model(model: ModelRun, references: dict[int, Reference], store: Path) -> Iterator[str]:
    reference = _start(model, references)
    if reference is None:
        yield "its source was not saved"
        return
    references[model.plan.index] = reference
    yield from _created(model)
    answered = {done.command.seq: done for done in model.commands}
    for command in model.plan.commands:
        expected = reference.apply(command)
        done = answered.get(command.seq)
        if done is None or not done.body:
            yield f"seq {command.seq} ({command.kind}) was never settled"
            continue
        yield from (f"seq {command.seq} ({command.kind}): {text}" for text in _outcome(done, expected))
        if command.kind == "save" and _last_of_its_name(command, model):
            yield from _saved(model.path(command.name), expected.state or {}, store)


def _last_of_its_name(save: Command, model: ModelRun) -> bool:
    later = (one for one in model.plan.commands if one.seq > save.seq)
    return not any(one.kind == "save" and one.name == save.name for one in later)


def _start(model: ModelRun, references: dict[int, Reference]) -> Reference | None:
    if model.plan.source < 0:
        return Reference.created(model.plan)
    state = references[model.plan.source].saved.get("end")
    return None if state is None else Reference.loaded(model.plan, state, optimizer=True)


def _created(model: ModelRun) -> Iterator[str]:
    told = json.loads(model.create.body or b"{}")
    if told.get("model_id") != model.model_id or not model.model_id:
        yield f"its create was answered {told}"


def _outcome(done: Done, expected: Expected) -> Iterator[str]:
    if expected.user_failure:
        yield from _user_failure(done.body)
    elif expected.logprobs is not None:
        yield from _batch(done.body, expected)
    else:
        told = json.loads(done.body)
        if "error" in told:
            yield f"failed: {told}"
        elif expected.metrics is not None and told["metrics"] != expected.metrics:
            yield f"metrics {told['metrics']} instead of {expected.metrics}"
    if expected.sampler_weights is not None:
        for sampled in done.samples:
            yield from _sample(sampled.body, expected_sequences(expected.sampler_weights, sampled.seed))
        if len(done.samples) != done.command.samples:
            yield f"{len(done.samples)} of {done.command.samples} samples were accepted"


def _user_failure(body: bytes) -> Iterator[str]:
    told = _json(body)
    if told.get("category") != "user":
        yield f"a command with a wrong value was answered {body[:200]!r}"


def _batch(body: bytes, expected: Expected) -> Iterator[str]:
    if body[:1] == b"{":
        yield f"failed: {body[:300]!r}"
        return
    output = wire.ForwardBackwardOutput.FromString(body)
    logprobs = [part for record in output.loss_fn_outputs for part in _parts(record.fields["logprobs"])]
    if logprobs != expected.logprobs:
        yield f"other logprobs ({len(logprobs)} datums)"
    losses = np.array(expected.losses, "<f4").tobytes()
    if b"".join(record.fields["loss:sum"].data for record in output.loss_fn_outputs) != losses:
        yield "other losses"
    if not math.isclose(output.metrics["loss:sum"], math.fsum(expected.losses or []), rel_tol=1e-9):
        yield f"loss:sum {output.metrics['loss:sum']} instead of {math.fsum(expected.losses or [])}"


def _parts(tensor: wire.BatchedTensor) -> list[bytes]:
    offsets = np.frombuffer(tensor.offsets, "<i8").tolist()
    return [tensor.data[start:end] for start, end in zip(offsets[:-1], offsets[1:], strict=True)]


def _sample(body: bytes, expected: list[tuple[bytes, bytes]]) -> Iterator[str]:
    if not body or body[:1] == b"{":
        yield f"a sample failed: {body[:300]!r}"
        return
    response = wire.SampleResponse.FromString(body)
    if [(one.tokens, one.logprobs) for one in response.sequences] != expected:
        yield "a sample of other weights"


def _saved(path: str, expected: State, store: Path) -> Iterator[str]:
    try:
        found = read_state(store, public_directory(parse_tinker_path(path)))
    except TinkermeshError as error:
        yield f"{path}: {error.message}"
        return
    if found != expected:
        yield f"{path} holds {found} instead of {expected}"


def _json(body: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(body))
    except ValueError:
        return {}
