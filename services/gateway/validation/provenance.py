"""The provenance of datums whose loss reads recorded sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.gateway.wire.batch import RawDatum

MAX_SEQUENCES = 16_384
_HOW = "sample with record_stability_info=true and attach the spans with Datum.with_provenance"


def provenance(datums: Sequence[RawDatum], loss_fn: str) -> list[types.DatumProvenance]:
    """One per datum. Raises InvalidInput naming the datum, the position and the remedy."""
    found = [_checked(index, datum, loss_fn) for index, datum in enumerate(datums)]
    sequences = {span.sequence_id for one in found for span in (*one.model_input, *one.targets)}
    if len(sequences) > MAX_SEQUENCES:
        raise InvalidInput(f"data: provenance names {len(sequences)} sequences, the limit is {MAX_SEQUENCES}")
    return found


def _checked(index: int, datum: RawDatum, loss_fn: str) -> types.DatumProvenance:
    spans = datum.provenance
    if spans is None:
        raise InvalidInput(f"datum {index}: {loss_fn} needs provenance and it has none; {_HOW}")
    _check_tiling(index, "model_input_spans", spans.model_input, datum.length)
    _check_tiling(index, "loss_fn_input_spans", spans.targets, datum.length)
    _check_advantages(index, datum, spans.targets)
    return types.DatumProvenance(model_input=spans.model_input, targets=spans.targets)


def _check_tiling(index: int, field: str, spans: Sequence[types.ProvenanceSpan], length: int) -> None:
    covered = sum(span.length for span in spans)
    if covered != length:
        raise InvalidInput(f"datum {index}: {field} cover {covered} positions of {length}; they must tile all of them")


def _check_advantages(index: int, datum: RawDatum, spans: Sequence[types.ProvenanceSpan]) -> None:
    sampled = np.repeat([span.sampled for span in spans], [span.length for span in spans])
    advantages = datum.inputs["advantages"].values
    misplaced = np.flatnonzero(~sampled & (advantages != 0))
    if misplaced.size:
        position = int(misplaced[0])
        raise InvalidInput(
            f"datum {index}, position {position}: advantages is {advantages[position]:g} on a token that was not "
            "sampled (loss_fn_input_spans say prompt_tokens); it must be 0 there"
        )
