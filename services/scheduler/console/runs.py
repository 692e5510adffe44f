"""Runs as the console lists them: from the catalog, with what their models say now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from tinkermesh.v1 import console_pb2 as pb

from services.common.errors import InvalidInput, MissingResource
from services.common.ids import parse_model_id
from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.console.points import point_message
from services.scheduler.store.catalog import ENTRIES_PER_CALL, CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, RunEntry
from services.scheduler.store.console import ConsoleReader, RunState
from services.scheduler.store.curves import CurveReader

LARGEST_PAGE = 100
SEARCHED = 1_000
LARGEST_TEXT = 200
NAME_CHARACTERS = 200
METADATA_BYTES = 8 * 1024

_OPEN_PHASES = {"": "ready", "live": "ready", "unseated": "parked"}


@dataclass(frozen=True, slots=True)
class _Named:
    entry: RunEntry
    name: str

    def matches(self, words: Sequence[str]) -> bool:
        facts = self.entry.facts
        text = "\n".join((self.entry.run_id, self.name, facts.base_model, self.entry.project)).lower()
        return all(word in text for word in words)


class ConsoleRuns:
    """Costs a page, whatever the total; a search looks at the newest SEARCHED runs."""

    def __init__(self, owned: TrainingRuns, catalog: CatalogStore, reader: ConsoleReader, curves: CurveReader) -> None:
        self._owned = owned
        self._catalog = catalog
        self._reader = reader
        self._curves = curves

    async def page(self, request: pb.ListConsoleRunsRequest) -> pb.ListConsoleRunsReply:
        """Raises InvalidInput."""
        if not 1 <= request.limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit: {request.limit} is not within 1 and {LARGEST_PAGE}")
        if len(request.text) > LARGEST_TEXT:
            raise InvalidInput(f"text: {len(request.text)} characters; {LARGEST_TEXT} at most")
        words = request.text.lower().split()
        if words:
            return await self._search(request, words)
        total, entries = await self._catalog.runs(request.tenant_id, "", request.offset, request.limit)
        runs = await self._described(await self._named(request.tenant_id, entries))
        return pb.ListConsoleRunsReply(runs=runs, total_count=total, known_count=total)

    async def get(self, run_id: str, tenant_id: str) -> pb.ConsoleRunDetails:
        """Raises MissingResource, Forbidden."""
        await self._owned.check_owner(run_id, tenant_id)
        entry = await self._catalog.run(tenant_id, run_id)
        if entry is None:
            raise MissingResource(f"run {run_id} is still being made")
        (state,) = await self._reader.runs([(entry.facts.pool, run_id)])
        (named,) = await self._named(tenant_id, [entry])
        curve = await self._curves.read(entry.facts.pool, run_id)
        metadata = entry.facts.metadata
        return pb.ConsoleRunDetails(
            run=_message(named, state),
            points=[point_message(point) for point in curve.points],
            stride=curve.stride,
            user_metadata_json=metadata if len(metadata.encode()) <= METADATA_BYTES else "",
            last_checkpoint=_path(entry.last_checkpoint),
            last_sampler_checkpoint=_path(entry.last_sampler_checkpoint),
        )

    async def _search(self, request: pb.ListConsoleRunsRequest, words: Sequence[str]) -> pb.ListConsoleRunsReply:
        found: list[_Named] = []
        total, looked = 0, 0
        while looked < SEARCHED:
            total, entries = await self._catalog.runs(request.tenant_id, "", looked, ENTRIES_PER_CALL)
            found += [one for one in await self._named(request.tenant_id, entries) if one.matches(words)]
            looked += len(entries)
            if len(entries) < ENTRIES_PER_CALL:
                break
        page = found[request.offset : request.offset + request.limit]
        reply = pb.ListConsoleRunsReply(runs=await self._described(page), total_count=len(found))
        reply.searched_count, reply.known_count = looked, total
        return reply

    async def _named(self, tenant_id: str, entries: Sequence[RunEntry]) -> list[_Named]:
        sessions = [parse_model_id(entry.run_id).session_id for entry in entries]
        shown = await self._reader.session_names(tenant_id, sessions)
        return [_Named(entry, _name(entry, name)) for entry, name in zip(entries, shown, strict=True)]

    async def _described(self, runs: Sequence[_Named]) -> list[pb.ConsoleRun]:
        states = await self._reader.runs([(one.entry.facts.pool, one.entry.run_id) for one in runs])
        return [_message(one, state) for one, state in zip(runs, states, strict=True)]


def _message(run: _Named, model: RunState) -> pb.ConsoleRun:
    entry, state = run.entry, state_of(model)
    return pb.ConsoleRun(
        run_id=entry.run_id,
        name=run.name,
        base_model=entry.facts.base_model,
        rank=entry.facts.layout.rank,
        project_id=entry.project,
        created_unix_ms=entry.created_ms,
        last_request_unix_ms=max(entry.created_ms, model.last_request_ms),
        state=state,
        close_reason=model.reason if state in ("closing", "closed") else "",
        steps=model.steps,
        last=None if model.last is None else point_message(model.last),
        queued=model.queued,
        waits_for_slot=model.queued > 0 and state in ("parked", "creating"),
    )


def state_of(model: RunState) -> str:
    """As ConsoleRun.state says."""
    if not model.state:
        return "ended"
    return _OPEN_PHASES.get(model.phase, "restoring") if model.state == "open" else model.state


def _name(entry: RunEntry, session_name: str) -> str:
    """What its owner called it, else what they called its session."""
    try:
        own = msgspec.json.decode(entry.facts.metadata or "{}").get("name")
    except (msgspec.DecodeError, AttributeError):
        own = None
    return (own if isinstance(own, str) and own else session_name)[:NAME_CHARACTERS]


def _path(entry: CheckpointEntry | None) -> str:
    return "" if entry is None else str(entry.path)
