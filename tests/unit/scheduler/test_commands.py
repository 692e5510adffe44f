"""What the queue needs to know of a command."""

from __future__ import annotations

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.scheduler.core.packing import datum_cost
from services.scheduler.core.view import Op
from services.scheduler.dispatch.commands import check_payload, op_of, pack_key, rejection


def body(loss: str = "ppo", fields: tuple[str, ...] = ("advantages",), **numbers: float) -> types.BatchBody:
    config = types.LossConfig(loss_fn=loss, numbers=numbers)
    return types.BatchBody(backward=True, loss=config, table=types.DatumTable(fields=fields))


def key(batch: types.BatchBody, op: Op = Op.FORWARD_BACKWARD) -> str:
    return pack_key(op, batch)


def test_pack_keys_are_equal_exactly_for_equal_work_PACK_02() -> None:
    assert key(body(a=0.8, b=1.2)) == key(body(b=1.2, a=0.8))
    assert key(body()) == key(body())
    different = [body(a=0.7), body(a=0.8), body("dro", a=0.8), body(fields=("weights",), a=0.8)]
    text = body()
    text.loss.texts["a"] = "0.8"
    assert len({key(batch) for batch in [*different, text]}) == 5
    assert key(body(), Op.FORWARD) != key(body(), Op.FORWARD_BACKWARD)


def test_batches_of_other_widths_do_not_share_a_pass_PACK_02() -> None:
    def wide(*widths: int) -> types.BatchBody:
        batch = body("cross_entropy")
        batch.table.widths.extend(widths)
        return batch

    assert key(wide(1, 1)) == key(wide(1))
    assert len({key(wide(1)), key(wide(4)), key(wide(1, 4))}) == 3


def test_many_targets_at_a_position_cost_more_of_a_pass() -> None:
    assert [datum_cost(10, width) for width in (1, 4, 5, 100)] == [11, 11, 21, 251]


def test_text_one_is_not_number_one_PACK_02() -> None:
    number, text = body(mode=1.0), body()
    text.loss.texts["mode"] = "1.0"
    assert key(number) != key(text)


def test_a_payload_must_be_what_its_table_says() -> None:
    table = types.DatumTable(lengths=[3], widths=[1], fields=["weights"])
    check_payload(table, 36)
    with pytest.raises(InvalidInput, match="35 bytes, its table says 36"):
        check_payload(table, 35)
    with pytest.raises(InvalidInput, match="1 lengths, 0 widths"):
        check_payload(types.DatumTable(lengths=[3]), 36)


def test_an_empty_batch_is_rejected_in_its_turn_VAL_05() -> None:
    command = types.Command(batch=types.BatchBody(backward=True))
    assert rejection(op_of(command), command) == "data: is empty; send at least one datum"


def test_a_rejected_command_without_a_body_moves_nothing() -> None:
    assert op_of(types.Command(rejected="broken")) is Op.FORWARD
