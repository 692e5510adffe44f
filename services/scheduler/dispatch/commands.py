"""From a v1.Command to what the queue needs to know of it."""

from __future__ import annotations

import json

from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import block_offsets
from services.common.errors import InvalidInput
from services.common.ids import key_hash
from services.scheduler.core.view import Op

_OPS = {
    "create_model": Op.CREATE,
    "create_from_checkpoint": Op.CREATE_FROM_CHECKPOINT,
    "optim_step": Op.OPTIM_STEP,
    "save_weights": Op.SAVE_WEIGHTS,
    "load_weights": Op.LOAD_WEIGHTS,
    "save_for_sampler": Op.SAVE_FOR_SAMPLER,
    "save_external": Op.SAVE_EXTERNAL,
    "unload_model": Op.UNLOAD_MODEL,
    "sample": Op.SAMPLE,
}


def op_of(command: types.Command) -> Op:
    """A rejected command without a body counts as a forward: it fails in its turn and moves nothing."""
    body = command.WhichOneof("body")
    if body is None or body == "batch":
        return Op.FORWARD_BACKWARD if command.batch.backward else Op.FORWARD
    return _OPS[body]


def pack_key(op: Op, batch: types.BatchBody) -> str:
    """Equal exactly when two batches may share a pass: op, loss, canonical config, datum fields (PACK-02).

    And the numbers of targets per position: a pass is as wide as its widest datum.
    """
    numbers = sorted(batch.loss.numbers.items())
    texts = sorted(batch.loss.texts.items())
    shape = [list(batch.table.fields), sorted(set(batch.table.widths))]
    return key_hash(op.value, batch.loss.loss_fn, json.dumps([numbers, texts]), json.dumps(shape))


def check_payload(table: types.DatumTable, payload_bytes: int) -> None:
    """Raises InvalidInput when the payload is not what its table says."""
    if len(table.widths) != len(table.lengths):
        raise InvalidInput(f"command.batch.table: {len(table.lengths)} lengths, {len(table.widths)} widths")
    expected = block_offsets(table.lengths, table.widths, len(table.fields))[-1]
    if expected != payload_bytes:
        raise InvalidInput(f"payload: {payload_bytes} bytes, its table says {expected}")


def rejection(op: Op, command: types.Command) -> str:
    """Why the command will fail in its turn; "" = it is valid."""
    if command.rejected:
        return command.rejected
    if op.is_batch and not command.batch.table.lengths:
        return "data: is empty; send at least one datum"
    return ""
