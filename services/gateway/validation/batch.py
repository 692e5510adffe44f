"""From a RawBatch to the canonical payload, with every content rule checked on the way.

Checks run over whole columns (all tokens, all targets, each float field of all datums); a datum
is searched for only when a column turned out to be bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinkermesh.v1 import types_pb2 as types

from services.common import stable_reinforce
from services.common.errors import InvalidInput
from services.gateway.settings import Limits
from services.gateway.validation.columns import Columns
from services.gateway.validation.losses import (
    PER_TOKEN_THRESHOLDS,
    TARGETS,
    TYPED_INPUTS,
    LossRule,
    loss_config,
    rule_for,
)
from services.gateway.validation.provenance import provenance
from services.gateway.wire.batch import RawBatch, RawDatum
from services.gateway.wire.tensors import Tensor


@dataclass(frozen=True, slots=True)
class CanonicalBatch:
    """payload: datum blocks as services.common.datum_blocks lays them out; dropped: unread inputs by count."""

    body: types.BatchBody
    payload: bytes
    dropped: dict[str, int]


def canonicalise(batch: RawBatch, facts: types.PoolFacts, limits: Limits) -> CanonicalBatch:
    """Raises InvalidInput naming the datum, the input and the remedy."""
    rule = rule_for(batch.loss.name, facts.losses)
    loss = loss_config(batch.loss, rule, relaxed=limits.relaxed_loss_config)
    _check_sizes(batch.datums, facts, limits)
    dropped: dict[str, int] = {}
    for index, datum in enumerate(batch.datums):
        _check_datum(index, datum, batch.loss.name, rule, limits, dropped)
    _check_targets_in_all(batch.datums, limits)
    columns = Columns(batch.datums)
    parts = [
        columns.tokens(facts.vocab_size),
        columns.targets(facts.vocab_size),
        *(columns.floats(name) for name in rule.fields),
    ]
    table = types.DatumTable(
        lengths=columns.lengths, widths=columns.widths, fields=rule.fields, columns=_columns(batch.datums)
    )
    body = types.BatchBody(backward=batch.backward, loss=loss, table=table)
    if batch.loss.name == stable_reinforce.NAME:
        body.provenance.extend(provenance(batch.datums, batch.loss.name))
    if batch.loss.name == "gspo":
        _check_ratio_masks(batch.datums)
    return CanonicalBatch(body, columns.blocks(parts), dropped)


def _check_sizes(datums: Sequence[RawDatum], facts: types.PoolFacts, limits: Limits) -> None:
    if not datums:
        raise InvalidInput("data is empty; send at least one datum")
    if len(datums) > limits.max_datums:
        raise InvalidInput(f"data: {len(datums)} datums, the limit is {limits.max_datums} per request")
    per_datum = min(limits.max_tokens_per_datum, facts.max_context or limits.max_tokens_per_datum)
    for index, datum in enumerate(datums):
        if datum.length == 0:
            raise InvalidInput(f"datum {index}: model_input is empty")
        if datum.length > per_datum:
            raise InvalidInput(f"datum {index}: {datum.length} tokens, the limit is {per_datum} per datum")
        if facts.max_datum_tokens and datum.length > facts.max_datum_tokens:
            raise InvalidInput(f"datum {index}: {_beyond_memory(datum.length, facts)}")
    total = sum(datum.length for datum in datums)
    if total > limits.max_tokens_per_request:
        raise InvalidInput(f"data: {total} tokens, the limit is {limits.max_tokens_per_request} per request")


def _beyond_memory(length: int, facts: types.PoolFacts) -> str:
    estimate, limit = length * facts.pass_bytes_per_token >> 20, facts.pass_memory_bytes >> 20
    return (
        f"{length} tokens, the limit is {facts.max_datum_tokens} per datum: a pass over it would take about "
        f"{estimate} MiB of memory, this pool's trainer has {limit} MiB for it"
    )


def _check_targets_in_all(datums: Sequence[RawDatum], limits: Limits) -> None:
    total = sum(datum.length * datum.inputs[TARGETS].width for datum in datums)
    if total > limits.max_targets_per_request:
        raise InvalidInput(f"data: {total} target_tokens, the limit is {limits.max_targets_per_request} per request")


def _columns(datums: Sequence[RawDatum]) -> list[int]:
    """Datums whose single target per position came as a matrix (N, 1)."""
    shapes = [datum.inputs[TARGETS].shape for datum in datums]
    return [index for index, shape in enumerate(shapes) if len(shape) == 2 and shape[1] == 1]


def _check_datum(
    index: int, datum: RawDatum, loss_fn: str, rule: LossRule, limits: Limits, dropped: dict[str, int]
) -> None:
    if _is_plain(datum, rule):
        return
    for name in datum.inputs:
        _check_name(index, name, rule, dropped)
    missing = [name for name in (TARGETS, *rule.fields) if name not in datum.inputs and name not in rule.optional]
    if missing:
        raise InvalidInput(f"datum {index}: needs {', '.join((TARGETS, *rule.fields))}; missing: {', '.join(missing)}")
    targets = datum.inputs[TARGETS]
    _check_targets(index, datum, targets)
    _check_width(index, datum, loss_fn, targets, limits.max_targets_per_position if rule.matrix else 0)
    for name in rule.fields:
        tensor = datum.inputs.get(name)
        if tensor is not None and tensor.shape != targets.shape:
            raise InvalidInput(
                f"datum {index}: {name} has shape {list(tensor.shape)}, target_tokens has {list(targets.shape)}"
            )


def _is_plain(datum: RawDatum, rule: LossRule) -> bool:
    """What nearly every datum is: exactly the loss's inputs, one target per position."""
    shape = (datum.length,)
    inputs = datum.inputs
    return (
        inputs.keys() == rule.names
        and all(tensor.shape == shape for tensor in inputs.values())
        and inputs[TARGETS].dtype != "float32"
    )


def _check_name(index: int, name: str, rule: LossRule, dropped: dict[str, int]) -> None:
    if name in PER_TOKEN_THRESHOLDS:
        raise InvalidInput(f"datum {index}: per-token {name} is not supported; set it in loss_fn_config")
    if name not in TYPED_INPUTS:
        accepted = ", ".join((TARGETS, *rule.fields))
        raise InvalidInput(f"datum {index}: unknown loss input {name[:80]!r}; this loss reads {accepted}")
    if name not in rule.names and name not in rule.unread:
        dropped[name] = dropped.get(name, 0) + 1


def _check_targets(index: int, datum: RawDatum, targets: Tensor) -> None:
    if targets.dtype == "float32":
        raise InvalidInput(f"datum {index}: target_tokens must be int64, not float32")
    if targets.length != datum.length:
        counts = f"{targets.length} target_tokens for {datum.length} model_input tokens"
        raise InvalidInput(f"datum {index}: {counts}; as many are needed")


def _check_ratio_masks(datums: Sequence[RawDatum]) -> None:
    for index, datum in enumerate(datums):
        if datum.inputs["advantages"].values.any() and not datum.inputs["sequence_ratio_mask"].values.any():
            raise InvalidInput(
                f"datum {index}: sequence_ratio_mask is 0 everywhere, so the sequence has no ratio; "
                "set it to 1 on the sampled tokens"
            )


def _check_width(index: int, datum: RawDatum, loss_fn: str, targets: Tensor, widest: int) -> None:
    """`widest` is 0 for a loss that takes vectors only."""
    if len(targets.shape) == 1:
        return
    shape = f"datum {index}: target_tokens has shape {list(targets.shape)}"
    if widest == 0:
        raise InvalidInput(f"{shape}; {loss_fn} takes one target per position, send shape [{datum.length}]")
    if not 0 < targets.width <= widest:
        raise InvalidInput(f"{shape}; between 1 and {widest} targets per position are accepted")
