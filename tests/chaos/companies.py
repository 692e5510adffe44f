"""Which requests the real trainer computed together, read from its log: one line per pass, in the unit's order.

The order is that of the slots, and a slot's number says how its rows are aligned: passes of equal companies
are equal bit by bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.player import Run

Member = tuple[int, int, int]
"""Index of the model in its history, seq of the command, slot."""
Company = tuple[Member, ...]
Companies = dict[tuple[int, int], set[Company]]
"""By model and seq: every company the command was computed in, those of replays and of lost passes included."""
STRANGER = (-1, -1)
"""A request of another history."""


def companies(run: Run, log: str) -> Companies:
    names = {done.request_id: (model.plan.index, done.command.seq) for model in run.models for done in model.commands}
    found: Companies = defaultdict(set)
    for requests, slots in _passes(log.splitlines()):
        members = tuple((*names.get(one, STRANGER), slot) for one, slot in zip(requests, slots, strict=True))
        for index, seq, _ in members:
            found[index, seq].add(members)
    return found


def _passes(lines: Iterable[str]) -> Iterable[tuple[list[str], list[int]]]:
    """(request ids, slots) of each pass; a line that a kill cut off is none."""
    for line in lines:
        if '"pass: ' not in line:
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield entry["request_id"].split(), entry["slots"]
