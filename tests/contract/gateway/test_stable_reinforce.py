"""Datums with provenance, and the loss over a whole sequence: what the gateway accepts, sends on and refuses."""

# ruff: noqa: E501 - one case per line

from __future__ import annotations

import re
from typing import Any

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.gateway.validation import provenance
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler

T4 = [5, 6, 7, 8]
Spans = list[dict[str, Any]]


def prompt(length: int, offset: int = 0, name: str = "s.0.0") -> dict[str, Any]:
    return {"prompt_tokens": {"sequence_id": name, "offset": offset, "length": length}}


def sampled(length: int, offset: int = 0, name: str = "s.0.0") -> dict[str, Any]:
    return {"sampled_tokens": {"sequence_id": name, "offset": offset, "length": length}}


INPUT, TARGETS = [prompt(2), sampled(2)], [prompt(1, 1), sampled(3)]


def lesson(
    inputs: Spans | None = None,
    targets: Spans | None = None,
    advantages: tuple[float, ...] = (0.0, 1.0, -1.0, 1.0),
    **more: dict[str, Any],
) -> dict[str, Any]:
    one = forms.datum(
        T4,
        target_tokens=forms.tensor([6, 7, 8, 9], "int64"),
        advantages=forms.tensor(list(advantages), "float32"),
        **more,
    )
    given = {"model_input_spans": inputs, "loss_fn_input_spans": targets}
    return {**one, **{name: value for name, value in given.items() if value is not None}}


def stable(model: str, seq: int, *data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return forms.request(model, seq, list(data), "stable_reinforce", **more)


async def test_provenance_goes_on_with_the_command_in_every_encoding_API_03(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    given = {"logprobs": forms.tensor([0.0] * 4, "float32")}
    body = stable(model, 1, lesson(INPUT, TARGETS, **given), loss_fn_config={"kl_coeff": 0.0})
    answers = [await client.post("forward_backward", body), await client.protobuf(forms.to_protobuf(body))]
    assert len({answer.json()["request_id"] for answer in answers}) == 1
    batch = scheduler.last.command.batch
    assert list(batch.table.fields) == ["advantages"]
    assert dict(batch.loss.numbers) == {"kl_coeff": 0.0}
    (one,) = batch.provenance
    assert one.model_input[1] == types.ProvenanceSpan(sequence_id="s.0.0", offset=0, length=2, sampled=True)
    assert one.targets[0] == types.ProvenanceSpan(sequence_id="s.0.0", offset=1, length=1, sampled=False)
    assert client.gateway.dropped.total == {}  # its logprobs belong to the loss, though the records count


async def test_other_losses_ignore_provenance(client: Client, scheduler: FakeScheduler, model: str) -> None:
    broken = {**forms.policy(T4), "model_input_spans": [prompt(1, -1)], "loss_fn_input_spans": [sampled(1)]}
    for seq, encode in enumerate((forms.to_protobuf, None), start=1):
        body = forms.request(model, seq, [broken], "importance_sampling")
        await (client.protobuf(encode(body)) if encode else client.post("forward_backward", body))
        assert not scheduler.last.command.rejected
        assert not scheduler.last.command.batch.provenance


async def test_other_spans_are_another_command_IDEM_09(client: Client, scheduler: FakeScheduler, model: str) -> None:
    await client.post("forward_backward", stable(model, 1, lesson(INPUT, TARGETS)))
    changed = [prompt(2), sampled(1), sampled(1, 1)]
    assert (await client.post("forward_backward", stable(model, 1, lesson(changed, TARGETS)))).status_code == 400
    empty = [prompt(2), sampled(0, 4), sampled(2)]  # SDK 0.38 may send runs of no tokens
    assert (await client.post("forward_backward", stable(model, 1, lesson(empty, TARGETS)))).status_code == 200


REFUSED: list[tuple[str, dict[str, Any], dict[str, float], str]] = [
    ("none", lesson(), {}, r"datum 1: stable_reinforce needs provenance and it has none; sample with record_stability_info=true"),
    ("input short", lesson([prompt(2), sampled(1)], TARGETS), {}, r"datum 1: model_input_spans cover 3 positions of 4"),
    ("targets only", lesson(None, TARGETS), {}, r"datum 1: model_input_spans cover 0 positions of 4"),
    ("targets long", lesson(INPUT, [prompt(1), sampled(4)]), {}, r"datum 1: loss_fn_input_spans cover 5 positions of 4"),
    ("prompt advantage", lesson(INPUT, TARGETS, (0.5, 1.0, 1.0, 1.0)), {}, r"datum 1, position 0: advantages is 0.5 on a token that was not sampled"),
    ("no id", lesson([prompt(2, name=""), sampled(2)], TARGETS), {}, r"datum 1: model_input_spans\[0\]: sequence_id is missing"),
    ("long id", lesson([prompt(2, name="x" * 301), sampled(2)], TARGETS), {}, r"datum 1: model_input_spans\[0\]: sequence_id is missing or too long"),
    ("negative", lesson([prompt(2, -1), sampled(2)], TARGETS), {}, r"offset -1 and length 2 are not a run"),
    ("neither", lesson([{}, sampled(2)], TARGETS), {}, r"datum 1: model_input_spans\[0\] is neither prompt_tokens nor sampled_tokens"),
    ("kl", lesson(INPUT, TARGETS), {"kl_coeff": -0.1}, r"kl_coeff must be >= 0"),
    ("key", lesson(INPUT, TARGETS), {"beta": 0.1}, r"'beta' is not read by stable_reinforce; accepted keys: kl_coeff"),
    ("no advantages", {**forms.supervised(T4), "model_input_spans": INPUT, "loss_fn_input_spans": TARGETS}, {}, r"datum 1: needs target_tokens, advantages; missing: advantages"),
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize(("name", "one", "config", "text"), REFUSED, ids=[case[0] for case in REFUSED])
async def test_provenance_that_does_not_fit_is_an_ordered_failure_VAL_01(
    client: Client, model: str, encoding: str, name: str, one: dict[str, Any], config: dict[str, float], text: str
) -> None:
    body = stable(model, 1, lesson(INPUT, TARGETS), one, loss_fn_config=config)
    sent = client.protobuf(forms.to_protobuf(body)) if encoding == "protobuf" else client.post("forward_backward", body)
    failure = await client.failure(await sent)
    assert re.search(text, failure), failure


async def test_a_batch_names_a_bounded_number_of_sequences_VAL_01(
    client: Client, scheduler: FakeScheduler, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_SEQUENCES", 2)
    names = ("s.0.0", "s.0.1", "s.0.2")
    lessons = [
        lesson([prompt(2, name=one), sampled(2, name=one)], [prompt(1, 1, one), sampled(3, name=one)]) for one in names
    ]
    await client.post("forward_backward", stable(model, 1, *lessons[:2], *lessons[:2]))
    assert len(scheduler.last.command.batch.provenance) == 4
    failure = await client.failure(await client.post("forward_backward", stable(model, 2, *lessons)))
    assert "names 3 sequences, the limit is 2" in failure


def ratio(mask: list[float], advantages: list[float]) -> dict[str, Any]:
    return forms.datum(
        T4,
        target_tokens=forms.tensor([6, 7, 8, 9], "int64"),
        logprobs=forms.tensor([-0.5] * 4, "float32"),
        advantages=forms.tensor(advantages, "float32"),
        sequence_ratio_mask=forms.tensor(mask, "float32"),
    )


async def test_gspo_reads_its_mask_and_needs_one_VAL_02(client: Client, scheduler: FakeScheduler, model: str) -> None:
    padding = ratio([0.0] * 4, [0.0] * 4)
    body = forms.request(model, 1, [ratio([0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]), padding], "gspo")
    await client.protobuf(forms.to_protobuf(body))
    assert list(scheduler.last.command.batch.table.fields) == ["logprobs", "advantages", "sequence_ratio_mask"]
    without = forms.request(model, 2, [forms.policy(T4)], "gspo")
    failure = await client.failure(await client.protobuf(forms.to_protobuf(without)))
    assert "missing: sequence_ratio_mask" in failure
    empty = forms.request(model, 3, [ratio([0.0] * 4, [0.0, 0.0, 1.0, 0.0])], "gspo")
    failure = await client.failure(await client.protobuf(forms.to_protobuf(empty)))
    assert "datum 0: sequence_ratio_mask is 0 everywhere" in failure
    bounds = {"clip_low_threshold": 1.3}
    crossed = forms.request(model, 4, [ratio([1.0] * 4, [1.0] * 4)], "gspo", loss_fn_config=bounds)
    failure = await client.failure(await client.protobuf(forms.to_protobuf(crossed)))
    assert "clip_low_threshold 1.3 is above clip_high_threshold 1.2" in failure
