"""Provenance spans of a datum: which recorded sequence each run of its positions came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import InvalidInput
from services.gateway.wire import bodies

MAX_ID_CHARACTERS = 300
_UINT32_MAX = (1 << 32) - 1


class Provenance(NamedTuple):
    """Spans of the model input and of the targets, in order, each at least one position long."""

    model_input: list[types.ProvenanceSpan]
    targets: list[types.ProvenanceSpan]


def of_protobuf(datum: wire.Datum) -> Provenance | None:
    """None when the datum has none. Raises InvalidInput."""
    if not datum.model_input_spans and not datum.loss_fn_input_spans:
        return None
    return Provenance(
        _spans("model_input_spans", map(_of_message, datum.model_input_spans)),
        _spans("loss_fn_input_spans", map(_of_message, datum.loss_fn_input_spans)),
    )


def of_json(datum: bodies.Datum) -> Provenance | None:
    """None when the datum has none. Raises InvalidInput."""
    if not datum.model_input_spans and not datum.loss_fn_input_spans:
        return None
    return Provenance(
        _spans("model_input_spans", map(_of_body, datum.model_input_spans or ())),
        _spans("loss_fn_input_spans", map(_of_body, datum.loss_fn_input_spans or ())),
    )


class _Given(NamedTuple):
    sequence_id: str
    offset: int
    length: int
    sampled: bool


def _of_message(span: wire.ProvenanceSpan) -> _Given | None:
    kind = span.WhichOneof("span")
    if kind is None:
        return None
    run = span.sampled_tokens if kind == "sampled_tokens" else span.prompt_tokens
    return _Given(run.sequence_id, run.offset, run.length, kind == "sampled_tokens")


def _of_body(span: bodies.ProvenanceSpan) -> _Given | None:
    run = span.sampled_tokens or span.prompt_tokens
    if run is None or (span.sampled_tokens and span.prompt_tokens):
        return None
    return _Given(run.sequence_id, run.offset, run.length, span.sampled_tokens is not None)


def _spans(field: str, given: Iterable[_Given | None]) -> list[types.ProvenanceSpan]:
    spans = []
    for index, one in enumerate(given):
        if one is None:
            raise InvalidInput(f"{field}[{index}] is neither prompt_tokens nor sampled_tokens")
        if not 0 < len(one.sequence_id) <= MAX_ID_CHARACTERS:
            raise InvalidInput(f"{field}[{index}]: sequence_id is missing or too long")
        if one.offset < 0 or one.length < 0 or one.offset + one.length > _UINT32_MAX:
            raise InvalidInput(f"{field}[{index}]: offset {one.offset} and length {one.length} are not a run of tokens")
        if one.length:
            spans.append(
                types.ProvenanceSpan(
                    sequence_id=one.sequence_id, offset=one.offset, length=one.length, sampled=one.sampled
                )
            )
    return spans
