"""Every loss: what it needs, what it sends on, what it leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.gateway.validation.losses import RULES
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler

TOKENS = [5, 6, 7]
NEEDS = {
    "cross_entropy": ["weights"],
    "importance_sampling": ["logprobs", "advantages"],
    "ppo": ["logprobs", "advantages"],
    "cispo": ["logprobs", "advantages"],
    "dro": ["logprobs", "advantages"],
    "gspo": ["logprobs", "advantages", "sequence_ratio_mask"],
    "stable_reinforce": ["advantages"],
}


def datum(*names: str) -> dict[str, Any]:
    """Everything a loss may read under `names`, with provenance for the one that wants it."""
    inputs = {name: forms.tensor([0.25, 0.5, 0.75], "float32") for name in names if name != "target_tokens"}
    if "target_tokens" in names:
        inputs["target_tokens"] = forms.tensor([6, 9, 8], "int64")
    spans = [{"sampled_tokens": {"sequence_id": "s.0.0", "length": 3}}]
    return {**forms.datum(TOKENS, **inputs), "model_input_spans": spans, "loss_fn_input_spans": spans}


def test_the_table_is_complete() -> None:
    assert set(NEEDS) == set(RULES)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("loss", NEEDS)
async def test_each_missing_input_is_named_with_its_datum_VAL_02(
    client: Client, model: str, loss: str, encoding: str
) -> None:
    needed = ["target_tokens", *NEEDS[loss]]
    for seq, missing in enumerate(needed, start=1):
        if (loss, missing) == ("cross_entropy", "weights"):
            continue  # ones, as JSON clients leave it out
        body = forms.request(model, seq, [datum(*needed), datum(*(set(needed) - {missing}))], loss)
        sent = (
            client.protobuf(forms.to_protobuf(body))
            if encoding == "protobuf"
            else client.post("forward_backward", body)
        )
        failure = await client.failure(await sent)
        assert f"datum 1: needs {', '.join(needed)}; missing: {missing}" in failure


@pytest.mark.parametrize("loss", NEEDS)
async def test_every_datum_goes_on_with_exactly_what_its_loss_reads_VAL_03(
    client: Client, scheduler: FakeScheduler, model: str, loss: str
) -> None:
    """Some clients always send all of them."""
    needed = ["target_tokens", *NEEDS[loss]]
    everything = ["target_tokens", "weights", "logprobs", "advantages", "sequence_ratio_mask"]
    for seq, names in enumerate((needed, everything), start=1):
        body = forms.request(model, seq, [datum(*names), datum(*needed)], loss)
        await client.protobuf(forms.to_protobuf(body))
    clean, full = scheduler.submitted
    assert clean.payload == full.payload
    assert clean.command == full.command
    assert list(clean.command.batch.table.fields) == NEEDS[loss]


async def test_targets_go_on_as_labels_of_their_own_VAL_04(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    await client.protobuf(forms.to_protobuf(forms.request(model, 1, [datum("target_tokens", "weights")])))
    values = np.frombuffer(scheduler.last.payload, "<i4")
    assert values[:6].tolist() == [5, 6, 7, 6, 9, 8]
