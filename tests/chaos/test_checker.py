"""The checker against answers made without a mesh: it accepts the true ones and finds each planted fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from services.gateway.wire.render_batch import batch_protobuf
from services.gateway.wire.render_sample import sample_protobuf
from tests.chaos.checker import violations
from tests.chaos.history import Command, History, ModelPlan, make
from tests.chaos.player import Done, ModelRun, Run, Sampled
from tests.chaos.reference import Expected, Reference, expected_sequences
from tests.doubles import published

PLAN = (
    Command("fb", 1, seed=1, datums=2),
    Command("fb", 2, seed=2),
    Command("optim", 3, seed=3),
    Command("bad", 4, seed=4),
    Command("optim", 5, seed=5),
    Command("snapshot", 6, seed=6, name="n", samples=2),
    Command("save", 7, name="end"),
)
HISTORY = History(
    0, 1, tuple(ModelPlan(n, 0, rank=4, seed=n, commands=PLAN) for n in range(2)) + (ModelPlan(2, 0, 4, 9, PLAN, 0),)
)
SESSION = "00000000-0000-4000-8000-000000000000"
Tamper = Callable[[list[Command]], list[Command]]


def answered(history: History, store: Path, really: dict[int, Tamper] | None = None) -> Run:
    """What clients of a mesh see that executes, for some models, other commands than were sent."""
    run = Run(history)
    references: dict[int, Reference] = {}
    for plan in history.models:
        model = ModelRun(plan, model_id=name(plan.index), session_id=SESSION)
        model.create.body = json.dumps({"model_id": model.model_id}).encode()
        start = Reference.created(plan)
        if plan.source >= 0:
            start = Reference.loaded(plan, references[plan.source].saved["end"], optimizer=True)
        references[plan.index] = start
        tamper = (really or {}).get(plan.index, list)
        bodies = {}
        for command in tamper(list(plan.commands)):
            bodies[command.seq] = answer(command, start.apply(command), model, store)
        model.commands = [done for command in plan.commands if (done := bodies.get(command.seq))]
        run.models.append(model)
    return run


def name(index: int) -> str:
    return f"{SESSION}:train:{index}"


def answer(command: Command, expected: Expected, model: ModelRun, store: Path) -> Done:
    done = Done(command, f"r{model.plan.index}-{command.seq}")
    if expected.user_failure:
        done.body = json.dumps({"error": "no", "category": "user"}).encode()
    elif expected.logprobs is not None:
        losses = expected.losses or []
        sizes = [len(one) // 4 for one in expected.logprobs]
        batch = types.BatchResult(loss_sum=sum(losses), datum_losses=losses, lengths=sizes, widths=[1] * len(sizes))
        batch.logprobs = b"".join(expected.logprobs)
        done.body = batch_protobuf(batch)
    else:
        done.body = json.dumps({"metrics": expected.metrics}).encode()
    if expected.state is not None:
        directory = public_directory(parse_tinker_path(model.path(command.name)))
        published.publish(store, directory, ArtifactMeta(), expected.state, overwrite=True)
    if expected.sampler_weights is not None:
        done.samples = [drawn(expected.sampler_weights, command.seed + n) for n in range(command.samples)]
    return done


def drawn(weights: int, seed: int) -> Sampled:
    made = types.SampleResult()
    for tokens, logprobs in expected_sequences(weights, seed):
        made.sequences.add(tokens=tokens, logprobs=logprobs)
    return Sampled(seed, f"sample {seed}", sample_protobuf(made))


def without(seq: int) -> Tamper:
    return lambda commands: [replace(one, seq=-1) if one.seq == seq else one for one in commands if one.seq != seq]


def twice(seq: int) -> Tamper:
    return lambda commands: [copy for one in commands for copy in [one] * (2 if one.seq == seq else 1)]


def swapped(first: int, second: int) -> Tamper:
    def tamper(commands: list[Command]) -> list[Command]:
        made = list(commands)
        made[first - 1], made[second - 1] = made[second - 1], made[first - 1]
        return made

    return tamper


def test_true_answers_are_accepted(tmp_path: Path) -> None:
    assert violations(answered(HISTORY, tmp_path), tmp_path) == []


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (without(1), "seq 1 (fb) was never settled"),
        (twice(2), "seq 3 (optim): metrics"),
        (twice(3), "seq 3 (optim): metrics"),
        (swapped(2, 3), "other logprobs"),
        (twice(4), "seq 5 (optim): metrics"),
        (swapped(5, 6), "a sample of other weights"),
    ],
    ids=["lost", "doubled batch", "doubled step", "out of order", "doubled rejection", "late snapshot"],
)
def test_what_was_executed_otherwise_is_found(tmp_path: Path, tamper: Tamper, words: str) -> None:
    found = violations(answered(HISTORY, tmp_path, {1: tamper}), tmp_path)
    assert any(words in text for text in found), found
    keeps_weights = "sample" in words or "seq 5" in words
    assert any("/weights/end holds" in text for text in found) != keeps_weights, found


def test_a_silently_lost_batch_is_found_in_every_later_bit(tmp_path: Path) -> None:
    """Its own answer is right, and its gradient is missing."""
    run, lost = answered(HISTORY, tmp_path), answered(HISTORY, tmp_path, {0: without(1)})
    lost.models[0].commands.insert(0, run.models[0].commands[0])
    found = violations(lost, tmp_path)
    assert any(f"{name(0)}: seq 3 (optim): metrics" in text for text in found), found
    assert any(f"{name(2)}: seq 1 (fb): other logprobs" in text for text in found), "what was made from it differs too"


def test_results_of_another_model_are_found(tmp_path: Path) -> None:
    run = answered(HISTORY, tmp_path)
    mine, foreign = run.models[0].commands[0], run.models[1].commands[0]
    mine.body, foreign.body = foreign.body, mine.body
    found = violations(run, tmp_path)
    assert [text for text in found if f"{name(0)}: seq 1 (fb): other logprobs" in text]
    assert [text for text in found if f"{name(1)}: seq 1 (fb): other logprobs" in text]


def test_failures_are_found(tmp_path: Path) -> None:
    run = answered(HISTORY, tmp_path)
    for done in run.models[0].commands[:3]:
        done.body = b'{"error": "trainer lost", "category": "server"}'
    run.models[0].commands[5].samples[0].body = b'{"error": "no sampler", "category": "server"}'
    found = violations(run, tmp_path)
    assert sum("failed:" in text for text in found) == 4, found


def test_a_future_that_changes_its_mind_is_found() -> None:
    run = Run(HISTORY)
    run.seen.settled("r", b"one")
    run.seen.settled("r", b"one")
    assert not run.seen.violations
    run.seen.settled("r", b"two")
    assert "answered in two ways" in run.seen.violations[0]


def test_a_missing_checkpoint_is_found(tmp_path: Path) -> None:
    run = answered(HISTORY, tmp_path)
    (tmp_path / "runs" / name(1) / "weights" / "end").unlink()
    assert any(f"tinker://{name(1)}/weights/end" in text for text in violations(run, tmp_path))


def test_a_history_is_the_same_whenever_it_is_made() -> None:
    made = [make(seed) for seed in range(30)]
    assert made == [make(seed) for seed in range(30)]
    assert len({one.models for one in made}) == 30
    faults = [fault for one in made for fault in one.faults]
    assert {fault.victim.split("-")[0] for fault in faults} >= {"trainer", "redis", "gateway", "scheduler"}


def test_the_checker_of_random_histories_accepts_them(tmp_path: Path) -> None:
    for seed in range(5):
        history = make(seed)
        assert violations(answered(history, tmp_path / str(seed)), tmp_path / str(seed)) == []
