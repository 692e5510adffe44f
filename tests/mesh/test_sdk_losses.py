"""The losses through the real SDK and real gateways and schedulers; the trainer is a double."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from services.common.datum_blocks import Datum
from tests.doubles import arithmetic
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import datum, reinforced

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(240)]

LENGTH, WIDTH = 6, 8


@pytest.fixture(scope="module")
def service(mesh: MeshProcesses) -> Iterator[tinker.ServiceClient]:
    client = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
    yield client
    close(client)


@pytest.fixture(scope="module")
def training(service: tinker.ServiceClient) -> Any:
    return service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=3).result()


def top_k(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """tokens [N], targets and weights [N, K], both mostly zeros but not in the same places."""
    random = np.random.default_rng(seed)
    targets = random.integers(1, 512, (LENGTH, WIDTH)) * (random.random((LENGTH, WIDTH)) < 0.3)
    weights = random.random((LENGTH, WIDTH)) * (random.random((LENGTH, WIDTH)) < 0.3)
    return random.integers(1, 512, LENGTH), targets.astype(np.int64), weights.astype(np.float32)


def sparse(values: np.ndarray, dtype: Any) -> types.TensorData:
    rows, columns = np.nonzero(values)
    return types.TensorData(
        data=values[rows, columns],
        dtype=dtype,
        shape=list(values.shape),
        sparse_crow_indices=np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(values))))).tolist(),
        sparse_col_indices=columns.tolist(),
    )


def expected(training: Any, tokens: np.ndarray, targets: np.ndarray, width: int) -> np.ndarray:
    """What the trainer double answers for a fresh adapter of seed 3."""
    info = training.get_info()
    layout = arithmetic.types.AdapterLayout(
        rank=info.lora_rank, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True
    )
    block = Datum(tokens.astype("<i4"), targets.astype("<i4").reshape(-1, width), {})
    return arithmetic.logprobs(arithmetic.fresh(layout, 3).weights, block)


def test_matrix_targets_and_weights_come_back_in_their_shape_API_11_LOSS_08(training: Any) -> None:
    tokens, targets, weights = top_k(1)
    mixes = [
        {"target_tokens": targets, "weights": weights},
        {"target_tokens": sparse(targets, "int64"), "weights": sparse(weights, "float32")},
        {"target_tokens": sparse(targets, "int64"), "weights": weights},
        {"target_tokens": targets, "weights": sparse(weights, "float32")},
    ]
    output = training.forward([datum(tokens, **mix) for mix in mixes], "cross_entropy").result()
    scores = [np.array(one["logprobs"].data, np.float32) for one in output.loss_fn_outputs]
    assert [list(one["logprobs"].shape) for one in output.loss_fn_outputs] == [[LENGTH, WIDTH]] * 4
    wanted = expected(training, tokens, targets, WIDTH)
    assert all(np.array_equal(one.reshape(LENGTH, WIDTH), wanted) for one in scores)
    loss = -float((wanted.astype(np.float64) * weights).sum())
    assert output.metrics["loss:sum"] == pytest.approx(4 * loss, rel=1e-6)


def test_torch_matrices_are_sent_as_the_cookbook_sends_them_API_11(training: Any) -> None:
    """2-D torch tensors under these keys travel as CSR; the vector beside them keeps its own shape."""
    torch = pytest.importorskip("torch")
    tokens, targets, weights = top_k(2)
    matrix = datum(tokens, target_tokens=torch.from_numpy(targets), weights=torch.from_numpy(weights))
    assert matrix.loss_fn_inputs["weights"].sparse_crow_indices is not None
    vector = datum(tokens, target_tokens=targets[:, 0], weights=weights[:, 0])
    column = datum(tokens, target_tokens=targets[:, :1], weights=weights[:, :1])
    output = training.forward_backward([vector, matrix, column], "cross_entropy").result()
    assert [list(one["logprobs"].to_torch().shape) for one in output.loss_fn_outputs] == [
        [LENGTH],
        [LENGTH, WIDTH],
        [LENGTH, 1],
    ]
    first, last = output.loss_fn_outputs[0]["logprobs"], output.loss_fn_outputs[2]["logprobs"]
    assert list(first.data) == list(last.data)  # bitwise: one target per position is one thing
    assert np.array_equal(np.array(first.data, np.float32), expected(training, tokens, targets[:, 0], 1)[:, 0])
    importance = datum(tokens, target_tokens=targets, logprobs=-weights, advantages=weights)
    output = training.forward([importance], "importance_sampling").result()
    assert list(output.loss_fn_outputs[0]["logprobs"].shape) == [LENGTH, WIDTH]


# ---- losses over whole sequences ----------------------------------------------------------------

PROMPT = [5, 6, 7]


def recorded(training: Any, count: int, **options: Any) -> list[Any]:
    """Samples of the model as it is, from a client that records."""
    sampler = training.save_weights_and_get_sampling_client(record_stability_info=True)
    sampler = sampler.result() if hasattr(sampler, "result") else sampler
    parameters = types.SamplingParams(max_tokens=6, stop=[], **options)
    return list(sampler.sample(types.ModelInput.from_ints(PROMPT), count, parameters).result().sequences)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_stable_reinforce_runs_as_the_cookbook_runs_it_API_11(training: Any, temperature: float) -> None:
    data = [
        reinforced(PROMPT, one, a)
        for one, a in zip(recorded(training, 2, temperature=temperature), (1.0, -1.0), strict=True)
    ]
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result()  # what other tests left open
    output = training.forward_backward(data, "stable_reinforce").result()
    step = training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert output.metrics["tinkermesh/truncated-is+k2:sum"] == output.metrics["loss:sum"]
    assert all(name.count(":") == 1 for name in output.metrics)
    assert [len(one["logprobs"].data) for one in output.loss_fn_outputs] == [8, 8]
    assert step.metrics["window_datums"] == 2
    looked = training.forward(data, "stable_reinforce", {"kl_coeff": 0.0}).result()
    assert len(looked.loss_fn_outputs) == 2


def test_stable_reinforce_refuses_what_it_cannot_know(training: Any, service: tinker.ServiceClient) -> None:
    (sequence,) = recorded(training, 1)
    good = reinforced(PROMPT, sequence, 1.0)
    bare = types.Datum(model_input=good.model_input, loss_fn_inputs=good.loss_fn_inputs)
    base = service.create_sampling_client(base_model=BASE_MODEL)
    base = base.result() if hasattr(base, "result") else base
    parameters = types.SamplingParams(max_tokens=6, stop=[])
    (plain,) = base.sample(types.ModelInput.from_ints(PROMPT), 1, parameters).result().sequences
    refused = {
        "datum 1: stable_reinforce needs provenance": [good, bare],
        "was not recorded: sample it with record_stability_info=true": [reinforced(PROMPT, plain, 1.0)],
    }
    for text, data in refused.items():
        with pytest.raises(tinker.RequestFailedError, match=text):
            training.forward_backward(data, "stable_reinforce").result()
    step = training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert step.metrics["window_rejected_requests"] == 2
    assert training.forward(data=[good], loss_fn="stable_reinforce").result().metrics["loss:sum"] != 0
    # The same data trains with any other loss, provenance or not.
    training.forward_backward([good, bare], "importance_sampling").result()


def test_gspo_runs_as_the_cookbook_runs_it(training: Any) -> None:
    good = reinforced(PROMPT, recorded(training, 1)[0], 1.0)
    mask = (np.arange(8) >= 2).astype(np.float32)
    data = [
        types.Datum(model_input=good.model_input, loss_fn_inputs={**good.loss_fn_inputs, "sequence_ratio_mask": mask})
    ]
    output = training.forward_backward(data, "gspo").result()
    assert len(output.loss_fn_outputs[0]["logprobs"].data) == 8
    with pytest.raises(tinker.RequestFailedError, match="missing: sequence_ratio_mask"):
        training.forward_backward([good], "gspo").result()


def test_what_is_not_supported_is_a_user_failure_that_names_it_API_11(training: Any) -> None:
    tokens, targets, weights = top_k(3)
    ppo = datum(tokens, target_tokens=targets, logprobs=-weights, advantages=weights)
    refused = {
        "ppo takes one target per position": lambda: training.forward([ppo], "ppo"),
        "loss_fn 'custom' is not supported by this mesh": lambda: training.forward(
            [datum(tokens, target_tokens=targets[:, 0])], "custom", {"loss_id": "x"}
        ),
        "optimizer 'dimuon' is not supported by this mesh; use adamw": lambda: training.optim_step(
            types.DimuonParams(learning_rate=1e-3)
        ),
    }
    for text, call in refused.items():
        with pytest.raises(tinker.RequestFailedError, match=text) as caught:
            call().result()
        assert str(caught.value.category).lower().endswith("user")
