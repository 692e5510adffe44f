"""What a double really executed: one JSON line per effect, so a test can count."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkermesh.v1 import trainer_pb2 as pb


@dataclass(slots=True)
class Journal:
    """In memory, and appended to `path` when given (survives a kill of the process)."""

    path: Path | None = None
    incarnation: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)

    def executed(self, unit: pb.Unit, kind: str) -> None:
        replay = {"replay": True} if unit.replay else {}
        self.write({"unit_id": unit.unit_id, "term": unit.term, "kind": kind, **replay, **_details(unit, kind)})

    def write(self, entry: dict[str, Any]) -> None:
        entry = {"incarnation": self.incarnation, **entry}
        self.entries.append(entry)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _details(unit: pb.Unit, kind: str) -> dict[str, Any]:
    if kind == "pass":
        work = getattr(unit, "pass")
        items = [(i.request_id, i.first_datum + n) for i in work.items for n in range(len(i.lengths))]
        slots = sorted({i.slot for i in work.items})
        return {"backward": work.backward, "datums": items, "slots": slots, "loss": work.loss.loss_fn}
    if kind == "optim":
        return {"requests": [s.request_id for s in unit.optim.steps], "slots": [s.slot for s in unit.optim.steps]}
    work = getattr(unit, kind)
    model_id = work.meta.model_id if kind in ("save", "snapshot") else getattr(work, "model_id", "")
    return {"slots": [work.slot], "model_id": model_id}


def read(path: Path) -> list[dict[str, Any]]:
    """Entries so far; a torn last line is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def datum_counts(entries: list[dict[str, Any]], *, backward: bool = True) -> Counter[tuple[str, int]]:
    """(request id, datum index) -> how often its gradients (or scores) were computed, replays not counted."""
    passes = (e for e in entries if e["kind"] == "pass" and e["backward"] == backward and not e.get("replay"))
    return Counter((request, index) for entry in passes for request, index in entry["datums"])


def step_counts(entries: list[dict[str, Any]]) -> Counter[str]:
    """Request id -> how often its optimizer step was taken, replays not counted."""
    steps = (e for e in entries if e["kind"] == "optim" and not e.get("replay"))
    return Counter(request for entry in steps for request in entry["requests"])


def unit_counts(entries: list[dict[str, Any]]) -> Counter[str]:
    return Counter(e["unit_id"] for e in entries if "unit_id" in e)
