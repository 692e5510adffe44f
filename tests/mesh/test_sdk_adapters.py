"""Adapters through the real SDK: seeds, parts, loads from other runs, the order of what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from services.common.datum_blocks import Datum
from tests.doubles import arithmetic
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised

tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
pytestmark = [pytest.mark.mesh, pytest.mark.timeout(240)]

PROBE = np.array([5, 9, 200, 31, 7, 8])


@pytest.fixture
def services(mesh: MeshProcesses) -> Iterator[list[Any]]:
    """Two sessions of one tenant; the slots of their models are free again after the test."""
    clients = [tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key) for _ in range(2)]
    yield clients
    for client in clients:
        close(client)


def create(service: Any, **options: Any) -> Any:
    return service.create_lora_training_client(base_model=BASE_MODEL, **{"rank": 8, **options}).result()


def probe(training: Any) -> list[float]:
    one = supervised(PROBE)
    return list(training.forward([one], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data)


def step(training: Any, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(1, 512, 12)
    training.forward_backward([supervised(tokens)], "cross_entropy").result()
    training.optim_step(tinker.types.AdamParams(learning_rate=1e-3)).result()


def test_the_seed_decides_where_an_adapter_starts_VAL_15(services: list[Any]) -> None:
    alike = [probe(create(service, seed=11)) for service in services]
    others = [probe(create(services[0], seed=12)), probe(create(services[0])), probe(create(services[0]))]
    assert alike[0] == alike[1]
    assert len({tuple(one) for one in (alike[0], *others)}) == 4


def test_an_adapter_trains_the_parts_it_was_made_with_VAL_15(services: list[Any]) -> None:
    """The double's start depends on the whole layout; a checkpoint carries it on."""
    training = create(services[0], seed=5, train_mlp=False, train_unembed=False)
    layout = arithmetic.types.AdapterLayout(rank=8, alpha=32.0, train_attn=True)
    block = Datum(PROBE.astype("<i4"), PROBE.astype("<i4")[:, None], {})
    expected = arithmetic.logprobs(arithmetic.fresh(layout, 5).weights, block)[:, 0]
    assert np.array_equal(np.array(probe(training), np.float32), expected)
    path = training.save_state("parts").result().path
    again = services[1].create_training_client_from_state(path).result()
    assert probe(again) == probe(training)


def test_weights_of_another_run_are_loaded_into_a_model_CKPT_12(services: list[Any]) -> None:
    source, target = create(services[0], seed=1), create(services[1], seed=2)
    step(source, 1)
    path = source.save_state("shared").result().path
    step(target, 2)
    assert probe(target) != probe(source)
    target.load_state_with_optimizer(path).result()
    assert probe(target) == probe(source)
    for training in (source, target):
        step(training, 3)
    assert probe(target) == probe(source)  # its moments came too
    narrow = create(services[1], seed=2, rank=4)
    before = probe(narrow)
    with pytest.raises(tinker.RequestFailedError, match=r"rank: checkpoint .* has 8, the model has 4"):
        narrow.load_state(path).result()
    partial = create(services[1], seed=2, train_mlp=False)
    with pytest.raises(tinker.RequestFailedError, match=r"train_mlp: checkpoint .* has True, the model has False"):
        partial.load_state(path).result()
    assert probe(narrow) == before  # and both stay open
    step(narrow, 4)


def test_a_rejected_part_of_a_window_is_told_by_its_step(services: list[Any]) -> None:
    training = create(services[0], seed=7)
    good = supervised(PROBE)
    bad = supervised(PROBE, PROBE + 1000)
    sent = [training.forward_backward([one], "cross_entropy") for one in (good, bad, good, bad)]
    stepped = training.optim_step(tinker.types.AdamParams(learning_rate=1e-3)).result()
    failed = 0
    for future in sent:
        try:
            future.result()
        except tinker.RequestFailedError as error:
            failed += 1
            assert "outside [0, 512)" in str(error)
    assert failed == 2
    assert stepped.metrics["window_rejected_requests"] == 2
    assert stepped.metrics["window_datums"] == 2
    training.forward_backward([good], "cross_entropy").result()
    clean = training.optim_step(tinker.types.AdamParams(learning_rate=1e-3)).result()
    assert "window_rejected_requests" not in clean.metrics


def test_a_datum_with_the_most_targets_allowed_passes_whole_API_14(services: list[Any]) -> None:
    """2,000 positions of 256 targets: 4 MB of datum, 2 MB of answer, above every frame on the way."""
    training = create(services[0], seed=3)
    random = np.random.default_rng(10)
    tokens, targets = random.integers(1, 512, 2000), random.integers(1, 512, (2000, 256))
    output = training.forward([supervised(tokens, targets, np.full(targets.shape, 0.5))], "cross_entropy").result()
    layout = arithmetic.types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
    block = Datum(tokens.astype("<i4"), targets.astype("<i4"), {})
    expected = arithmetic.logprobs(arithmetic.fresh(layout, 3).weights, block)
    answer = output.loss_fn_outputs[0]["logprobs"]
    assert list(answer.shape) == [2000, 256]
    assert np.array_equal(np.array(answer.data, np.float32).reshape(2000, 256), expected)
    wide = supervised(tokens[:2], targets[:2, [0] * 257])
    with pytest.raises(tinker.RequestFailedError, match="between 1 and 256 targets per position"):
        training.forward([wide], "cross_entropy").result()


def test_outputs_keep_the_requests_order_over_passes_and_widths_ORD_09(services: list[Any]) -> None:
    """Vectors, columns and matrices of many lengths, more than one pass of the double takes."""
    training = create(services[0], seed=3)
    random, data, blocks = np.random.default_rng(9), [], []
    for number in range(60):
        length, width = int(random.integers(1, 300)), (1, 1, 3, 8)[number % 4]
        shape = (length,) if number % 4 == 0 else (length, width)
        tokens, targets = random.integers(1, 512, length), random.integers(0, 512, shape)
        data.append(supervised(tokens, targets))
        blocks.append(Datum(tokens.astype("<i4"), targets.astype("<i4").reshape(length, width), {}))
    output = training.forward(data, "cross_entropy").result()
    layout = arithmetic.types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
    weights = arithmetic.fresh(layout, 3).weights
    for one, block, answer in zip(data, blocks, output.loss_fn_outputs, strict=True):
        assert list(answer["logprobs"].shape) == list(one.loss_fn_inputs["target_tokens"].shape)
        scores = np.array(answer["logprobs"].data, np.float32).reshape(block.targets.shape)
        assert np.array_equal(scores, arithmetic.logprobs(weights, block))
