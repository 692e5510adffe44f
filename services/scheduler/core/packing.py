"""Fill one pass: which waiting datums of an equal pack key go together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from services.scheduler.core.fairness import Turns
from services.scheduler.core.plans import PackedItem, PassPlan
from services.scheduler.core.view import ModelQueue, QueuedCommand

Candidate = tuple[ModelQueue, QueuedCommand]

TARGETS_PER_TOKEN = 4


def datum_cost(length: int, width: int) -> int:
    """Tokens a datum counts for in a pass: its input and one label.

    Every few targets at one position count as another token there: their bytes travel, and they
    are looked up in the output layer.
    """
    return length * -(-width // TARGETS_PER_TOKEN) + 1


def waiting_batches(models: Iterable[ModelQueue]) -> Iterator[Candidate]:
    """Every batch command with datums left whose turn in its model's queue has come."""
    for queue in models:
        if queue.slot is not None:
            yield from ((queue, command) for command in queue.run() if command.waiting)


def pack(seed: Candidate, candidates: Iterable[Candidate], budget: int, turns: Turns) -> PassPlan:
    """Datums in turn until the first that does not fit; the first is always taken (PACK-03)."""
    lines = _lines(seed, candidates)
    taken: dict[str, PackedItem] = {}
    spent = 0
    while lines:
        tenant = min(lines, key=lambda t: (turns.start(t), lines[t][0][1].arrival))
        queue, command = lines[tenant][0]
        index = command.issued + (taken[command.key].count if command.key in taken else 0)
        cost = command.costs[index]
        if taken and spent + cost > budget:
            break
        spent += cost
        turns.charge(tenant, cost)
        taken[command.key] = PackedItem(queue, command, command.issued, index + 1 - command.issued)
        _advance(lines, tenant, index + 1)
    return PassPlan(seed[1].pack_key, _by_slot(taken.values()))


def _lines(seed: Candidate, candidates: Iterable[Candidate]) -> dict[str, deque[Candidate]]:
    """Per tenant the commands that may join `seed`, itself included, oldest first."""
    joining = [c for c in candidates if (c[1].pack_key, c[1].group) == (seed[1].pack_key, seed[1].group)]
    lines: dict[str, deque[Candidate]] = {}
    for queue, command in sorted(joining, key=lambda c: c[1].arrival):
        lines.setdefault(queue.tenant, deque()).append((queue, command))
    return lines


def _advance(lines: dict[str, deque[Candidate]], tenant: str, next_index: int) -> None:
    line = lines[tenant]
    if next_index == len(line[0][1].costs):
        line.popleft()
    if not line:
        del lines[tenant]


def _by_slot(items: Iterable[PackedItem]) -> tuple[PackedItem, ...]:
    """Slot-contiguous, arrival order inside a slot (PACK-08)."""
    return tuple(sorted(items, key=lambda item: (item.queue.slot, item.command.arrival)))
