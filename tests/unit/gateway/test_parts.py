"""Small parts: targets, outbox, base model names, loss configuration, rendering, limits."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import ContractViolation, InvalidInput
from services.gateway.routes.sampling import announced_samples
from services.gateway.settings import Limits, Settings
from services.gateway.upstream.facts import Recent
from services.gateway.upstream.outbox import Outbox
from services.gateway.upstream.target import scheduler_target
from services.gateway.validation.base_models import match_pool
from services.gateway.validation.batch import canonicalise
from services.gateway.validation.losses import RULES, loss_config
from services.gateway.wire.batch import RawBatch, RawDatum, RawLoss
from services.gateway.wire.json_body import canonical_json, check_parts
from services.gateway.wire.render import render
from services.gateway.wire.render_batch import batch_protobuf
from services.gateway.wire.tensors import Tensor
from services.gateway.wire.zstd import ZstdCap

# ---- target ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "target"),
    [
        ("127.0.0.1:7001", "ipv4:127.0.0.1:7001"),
        ("127.0.0.1:7001, 127.0.0.1:7002", "ipv4:127.0.0.1:7001,127.0.0.1:7002"),
        ("localhost:1,127.0.0.1:2", "ipv4:127.0.0.1:1,127.0.0.1:2"),
        ("scheduler:7001", "dns:///scheduler:7001"),
        ("dns:///scheduler:7001", "dns:///scheduler:7001"),
    ],
)
def test_scheduler_addresses_become_one_target(addresses: str, target: str) -> None:
    assert scheduler_target(addresses) == target


@pytest.mark.parametrize("addresses", ["", "host", ":7001", "a:b", "127.0.0.1:1,x"])
def test_bad_scheduler_addresses_are_refused(addresses: str) -> None:
    with pytest.raises(InvalidInput):
        scheduler_target(addresses)


# ---- outbox ----------------------------------------------------------------------------------


async def first_message(outbox: Outbox) -> pb.WatchRequest:
    return await asyncio.wait_for(anext(outbox.messages()), 1)


async def test_a_new_stream_starts_with_all_open_waits() -> None:
    message = await first_message(Outbox([("t", "a"), ("t", "b")]))
    assert [item.request_id for item in message.add] == ["a", "b"]


async def test_an_id_that_left_and_came_back_is_not_removed() -> None:
    """The scheduler adds before it removes: both in one message would lose the wait."""
    outbox = Outbox([])
    outbox.add(("t", "a"))
    await first_message(outbox)
    outbox.remove(("t", "a"))
    outbox.add(("t", "a"))
    message = await first_message(outbox)
    assert [item.request_id for item in message.add] == ["a"]
    assert not message.remove


async def test_an_id_that_left_before_it_was_sent_is_not_added() -> None:
    outbox = Outbox([])
    outbox.add(("t", "a"))
    outbox.remove(("t", "a"))
    assert not (await first_message(outbox)).add


async def test_many_waits_go_out_in_bounded_messages() -> None:
    outbox = Outbox([("t", str(i)) for i in range(2500)])
    messages = outbox.messages()
    sizes = [len((await anext(messages)).add) for _ in range(3)]
    assert sizes == [1024, 1024, 452]


async def test_a_closed_outbox_ends_its_messages() -> None:
    outbox = Outbox([("t", "a")])
    messages = outbox.messages()
    await anext(messages)
    waiting = asyncio.create_task(anext(messages, None))
    await asyncio.sleep(0)
    outbox.close()
    assert await asyncio.wait_for(waiting, 1) is None


# ---- base models -------------------------------------------------------------------------------


def pool(name: str, *aliases: str) -> pb.PoolSummary:
    return pb.PoolSummary(facts=types.PoolFacts(pool=name.lower(), base_model=name, aliases=aliases))


@pytest.mark.parametrize(
    ("asked", "found"),
    [("A", "A"), ("A:peft:1", "A"), ("x", "B"), ("/m/b", "B"), ("/m//b/", "B"), ("/m/b:peft", "B"), ("C:v2", "C:v2")],
)
def test_names_match_exactly_first_then_without_suffix(asked: str, found: str) -> None:
    pools = [pool("A"), pool("B", "x", "/m/b"), pool("C:v2")]
    assert match_pool(asked, pools).base_model == found


@pytest.mark.parametrize("asked", ["a", "A/", "", ":", "AB", "/m"])
def test_other_names_are_refused_listing_what_is_served(asked: str) -> None:
    if asked == "A/":
        return
    with pytest.raises(InvalidInput, match="serves: A"):
        match_pool(asked, [pool("A")])


# ---- losses ------------------------------------------------------------------------------------


def test_relaxed_config_keeps_unknown_keys_and_empty_texts_VAL_10_VAL_11() -> None:
    loss = RawLoss("ppo", {"mode": "", "other": 0.0})
    config = loss_config(loss, RULES["ppo"], relaxed=True)
    assert dict(config.texts) == {"mode": ""}
    assert dict(config.numbers) == {"other": 0.0}
    with pytest.raises(InvalidInput):
        loss_config(loss, RULES["ppo"], relaxed=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_config_numbers_must_be_finite_VAL_09(value: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        loss_config(RawLoss("dro", {"beta": value}), RULES["dro"], relaxed=False)


def test_wide_targets_pass_when_the_limit_allows_them() -> None:
    targets = Tensor(np.array([1, 2, 3, 4], "<i8").tobytes(), "int64", (2, 2))
    weights = Tensor(np.ones(4, "<f4").tobytes(), "float32", (2, 2))
    datum = RawDatum(np.array([5, 6], "<i4").tobytes(), {"target_tokens": targets, "weights": weights})
    facts = types.PoolFacts(vocab_size=10, max_context=10, losses=["cross_entropy"])
    batch = RawBatch(True, RawLoss("cross_entropy"), [datum])
    canonical = canonicalise(batch, facts, Limits(max_targets_per_position=2))
    assert list(canonical.body.table.widths) == [2]
    assert np.frombuffer(canonical.payload, "<i4")[2:6].tolist() == [1, 2, 3, 4]


def test_tokens_per_request_are_limited_VAL_07() -> None:
    targets = Tensor(np.array([1, 2], "<i8").tobytes(), "int64", (2,))
    datum = RawDatum(np.array([5, 6], "<i4").tobytes(), {"target_tokens": targets})
    facts = types.PoolFacts(vocab_size=10, max_context=10, losses=["cross_entropy"])
    batch = RawBatch(True, RawLoss("cross_entropy"), [datum, datum])
    with pytest.raises(InvalidInput, match="4 tokens, the limit is 3 per request"):
        canonicalise(batch, facts, Limits(max_tokens_per_request=3))


# ---- rendering ---------------------------------------------------------------------------------


def batch_result(**changes: object) -> types.BatchResult:
    values: dict[str, object] = {
        "loss_sum": 1.0,
        "datum_losses": [0.5, 0.5],
        "lengths": [1, 2],
        "widths": [1, 1],
        "logprobs": np.array([1, 2, 3], "<f4").tobytes(),
    }
    return types.BatchResult(**{**values, **changes})  # type: ignore[arg-type]


def test_metrics_have_exactly_one_colon_and_loss_sum_API_13() -> None:
    result = batch_result(metrics={"a": 1.0, "b:c:d": 2.0, "e:mean": 3.0})
    output = wire.ForwardBackwardOutput.FromString(batch_protobuf(result))
    assert dict(output.metrics) == {"loss:sum": 1.0, "e:mean": 3.0}


def test_wide_datums_are_rendered_in_rectangular_records_in_order() -> None:
    result = batch_result(widths=[1, 2], logprobs=np.arange(5, dtype="<f4").tobytes())
    output = wire.ForwardBackwardOutput.FromString(batch_protobuf(result))
    assert [r.num_datums for r in output.loss_fn_outputs] == [1, 1]
    assert list(output.loss_fn_outputs[1].fields["logprobs"].trailing_shape) == [2]
    assert np.frombuffer(output.loss_fn_outputs[1].fields["logprobs"].data, "<f4").tolist() == [1, 2, 3, 4]


def test_a_column_goes_back_as_a_column() -> None:
    output = wire.ForwardBackwardOutput.FromString(batch_protobuf(batch_result(columns=[1])))
    trailing = [list(record.fields["logprobs"].trailing_shape) for record in output.loss_fn_outputs]
    assert trailing == [[], [1]]


@pytest.mark.parametrize("change", [{"logprobs": b"1234"}, {"datum_losses": [1.0]}])
def test_a_result_that_does_not_add_up_is_not_delivered_FAIL_09(change: dict[str, object]) -> None:
    with pytest.raises(ContractViolation):
        batch_protobuf(batch_result(**change))


def test_sequence_without_a_logprob_per_token_is_not_delivered_SAMP_09() -> None:
    result = types.Result(sample=types.SampleResult(sequences=[types.SampledSequence(tokens=bytes(8))]))
    for protobuf in (True, False):
        with pytest.raises(ContractViolation):
            render(result, protobuf=protobuf)


def test_sampled_topk_decodes_in_the_real_sdk_LOSS_12() -> None:
    conv = pytest.importorskip("tinker.proto.response_conv")
    ids = np.array([[7, 8], [9, 0]], "<i4").tobytes()
    scores = np.array([[-0.5, -1.0], [-0.25, -99999.0]], "<f4").tobytes()
    table = types.TopkTable(token_ids=ids, logprobs=scores, k=2, length=2)
    sequence = types.SampledSequence(
        tokens=np.array([7, 9], "<i4").tobytes(), logprobs=np.array([-0.5, -0.25], "<f4").tobytes(), topk=table
    )
    prompt = np.array([np.nan, -1.5], "<f4").tobytes()
    result = types.SampleResult(sequences=[sequence], prompt_logprobs=prompt)
    decoded = conv.deserialize_sample_response(render(types.Result(sample=result), protobuf=True).content)
    assert decoded.prompt_logprobs == [None, -1.5]
    assert decoded.sequences[0].topk_logprobs == [[(7, -0.5), (8, -1.0)], [(9, -0.25)]]
    assert decoded.sequences[0].stop_reason == "length"


def test_batch_result_decodes_and_merges_in_the_real_sdk_API_13() -> None:
    conv = pytest.importorskip("tinker.proto.response_conv")
    helpers = pytest.importorskip("tinker.lib.chunked_fwdbwd_helpers")
    chunks = [
        conv.deserialize_forward_backward_output(batch_protobuf(batch_result(metrics={"n:sum": 2.0}))),
        conv.deserialize_forward_backward_output(
            batch_protobuf(
                batch_result(loss_sum=3.0, datum_losses=[3.0], lengths=[3], widths=[1], metrics={"n:sum": 1.0})
            )
        ),
    ]
    merged = helpers.combine_fwd_bwd_output_results(chunks)
    assert merged.metrics["loss:sum"] == 4.0
    assert [len(one["logprobs"].data) for one in merged.loss_fn_outputs] == [1, 2, 3]


# ---- rest --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "count"),
    [(b'{"num_samples": 4}', 4), (b"{}", 1), (b'{"num_samples": true}', 1), (b'{"num_samples": -5}', 1),
     (b'{"num_samples": 1000000}', 64), (b'{"num_samples": "x"}', 1), (b'{"num_samples": 1e2}', 1)],
)  # fmt: skip
def test_broken_samples_announce_a_possible_number_of_sequences(body: bytes, count: int) -> None:
    assert announced_samples(body, Limits()) == count


def test_metadata_is_the_same_text_whatever_its_order_IDEM_09() -> None:
    left, right = (msgspec.Raw(text) for text in (b'{"b": {"y": 1, "x": 2}, "a": 1}', b'{"a":1,"b":{"x":2,"y":1}}'))
    assert canonical_json(left) == canonical_json(right) == '{"a":1,"b":{"x":2,"y":1}}'
    assert canonical_json(msgspec.Raw(b"null")) == canonical_json(msgspec.Raw(b"{}")) == ""


def test_parts_are_counted_wherever_they_stand_VAL_14() -> None:
    body = b'{"a": [[], "b", {"c": 1}]}'
    check_parts(body, 7)  # 2 objects, 2 lists, 3 texts
    with pytest.raises(InvalidInput, match="more than 6 objects, lists and texts"):
        check_parts(body, 6)


def test_cap_grows_with_the_input_up_to_the_absolute_limit_VAL_14() -> None:
    cap = ZstdCap(max_bytes=1000, max_ratio=10, free_bytes=100)
    assert [cap.allowed(size) for size in (1, 50, 1000)] == [100, 500, 1000]


def test_recent_forgets_the_least_recently_used() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)


def test_limits_follow_the_settings() -> None:
    settings = Settings(key_file="k", pepper_file="p", max_datums=3, max_samples=2)
    assert (settings.limits.max_datums, settings.limits.max_samples) == (3, 2)
