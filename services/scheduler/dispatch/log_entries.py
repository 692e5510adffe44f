"""What a unit's effects leave in the logs of its models (functions/_log.lua)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.datum_blocks import block_bytes
from services.scheduler.core.outcomes import DatumReport

SKIPPED_METRIC = "skipped_nonfinite"
NORM_METRIC = "grad_norm"


def pass_entries(item: pb.PassItem, reports: Sequence[DatumReport], fields: int) -> bytes:
    """One entry for each run of datums that contributed; those that failed have none (ADD-05)."""
    entries = []
    runs = groupby(range(len(reports)), key=lambda index: reports[index].fault is None)
    for contributed, indices in runs:
        if contributed:
            entries.append(_run(item, list(indices), reports, fields))
    return _encoded(entries)


def _run(item: pb.PassItem, indices: list[int], reports: Sequence[DatumReport], fields: int) -> dict[str, Any]:
    return {
        "f": item.first_datum + indices[0],
        "n": len(indices),
        "b": sum(block_bytes(item.lengths[index], item.widths[index], fields) for index in indices),
        "l": repr(sum(reports[index].loss for index in indices)),
    }


def step_entry(metrics: Mapping[str, float]) -> bytes:
    if metrics.get(SKIPPED_METRIC):
        return _encoded([{"x": 1}])
    return _encoded([{"l": repr(metrics[NORM_METRIC])} if NORM_METRIC in metrics else {}])


def load_entry(load: pb.LoadSlotWork) -> bytes:
    return _encoded([{"d": load.directory, "z": int(load.optimizer)}])


def save_entry() -> bytes:
    return _encoded([{}])


def base_entry(unit: pb.Unit, key: str) -> bytes:
    """The base of a model that was just made: its create, or the checkpoint it came from."""
    if unit.HasField("init"):
        return msgspec.json.encode({"kind": "init", "key": key})
    load = unit.load
    return msgspec.json.encode({"kind": "load", "directory": load.directory, "optimizer": load.optimizer})


def _encoded(entries: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(entries) if entries else b""
