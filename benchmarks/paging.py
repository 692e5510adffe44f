"""64 models on 4 slots of the real trainer, served in turn: what a switch costs, and that it changes no bit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import RunningMesh, real
from services.common.store import resolve
from services.common.tinker_path import parse_tinker_path
from tools.make_tiny_qwen3 import VOCABULARY, build

NAME = "tinkermesh/tiny"
MODELS, QUICK_MODELS, SLOTS, ROUNDS, TOKENS = 64, 8, 4, 2, 64
STEPS_A_TURN = 2  # the first comes behind a switch, the second does not
LIKE: dict[str, Any] = {"base_model": NAME, "vocabulary": VOCABULARY, "tokens": TOKENS}
FILES = ("adapter_model.safetensors", "optimizer.safetensors")
Times = list[list[float]]


def run(quick: bool) -> list[Figure]:
    models = QUICK_MODELS if quick else MODELS
    with tempfile.TemporaryDirectory(prefix="tinkermesh-tiny-") as directory:
        model = build(Path(directory) / "tiny-qwen3")
        with real(model, NAME, sampler=False, slots=SLOTS) as mesh:
            return _measured(mesh, models)


def _measured(mesh: RunningMesh, models: int) -> list[Figure]:
    with ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **LIKE, models=models)
        client.do("start_heartbeats", period=10.0)
        seen = len(mesh.log_fields("trainer")), mesh.recovery().pages_total
        turns = [turn for _ in range(ROUNDS) for turn in client.do("turns", count=STEPS_A_TURN)]
        lines, pages = mesh.log_fields("trainer")[seen[0] :], mesh.recovery().pages_total - seen[1]
        paged = client.do("save", checkpoint="paged")
        steps = ROUNDS * STEPS_A_TURN
        solo = [client.do("solo", **LIKE, number=n, steps=steps, checkpoint="solo") for n in range(models)]
        start = client.do("solo", **LIKE, number=0, steps=0, checkpoint="start")
    equal = _equality(mesh.settings.store, paged, solo, start)
    return [Figure("slots given up", [float(pages)], "", note=_note(models)), *_costs(turns), *_parts(lines), *equal]


def _note(models: int) -> str:
    return f"{models} models on {SLOTS} slots, {ROUNDS} turns of {STEPS_A_TURN} steps each, {TOKENS} tokens a step"


def _costs(turns: Times) -> list[Figure]:
    first, second = [turn[0] for turn in turns], [turn[1] for turn in turns]
    return [
        Figure("step behind a switch", first, "s"),
        Figure("step of a seated model", second, "s"),
        Figure("a switch", [a - b for a, b in zip(first, second, strict=True)], "s", note="the two steps of one turn"),
    ]


def _parts(lines: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Of a switch, by the trainer's own lines; the rest is the way between Redis, scheduler and trainer."""
    written = [line["seconds"] for line in lines if str(line.get("published", "")).startswith("durable/")]
    named = {"capture": "save", "unload": "unload", "restore from a durable point": "load"}
    parts = {name: _unit_seconds(lines, kind) for name, kind in named.items()}
    parts["write and publish"] = written
    return [Figure(f"of it: {name}", seconds, "s") for name, seconds in parts.items() if seconds]


def _unit_seconds(lines: Sequence[Mapping[str, Any]], kind: str) -> list[float]:
    messages = [str(line.get("message", "")) for line in lines]
    return [float(message.split()[1]) for message in messages if message.startswith(f"{kind}: ")]


def _equality(store: Path, paged: Sequence[str], solo: Sequence[str], start: str) -> list[Figure]:
    pairs = list(zip(paged, solo, strict=True))
    same = sum(all(_file(store, a, file) == _file(store, b, file) for file in FILES) for a, b in pairs)
    furthest = max(_distance(store, a, b) / _distance(store, b, start) for a, b in pairs)
    return [
        Figure("models bitwise equal to their solo run", [float(same)], "", f">= {len(pairs)}", "weights and moments"),
        Figure("largest difference of weights / norm of the update", [furthest], "", "<= 0.001"),
    ]


def _file(store: Path, path: str, name: str) -> bytes:
    return (resolve(store, parse_tinker_path(path)) / name).read_bytes()


def _distance(store: Path, left: str, right: str) -> float:
    """Euclidean norm over all weights of two checkpoints."""
    one, two = (load_file(resolve(store, parse_tinker_path(path)) / FILES[0]) for path in (left, right))
    return float(sum(((one[name] - two[name]) ** 2).sum(dtype="float64") for name in one) ** 0.5)
