"""What was read along a prompt, as the SDK's own decoder sees it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.gateway.wire.render import render

LOGPROBS = np.asarray([-1.5, -2.5, -0.25, -3.0], "<f4")


def indices(*values: int) -> bytes:
    return np.asarray(values, "<i4").tobytes()


def result() -> types.Result:
    made = types.Result()
    made.sample.sequences.add(tokens=indices(7), logprobs=LOGPROBS[:1].tobytes())
    return made


def dense() -> types.Result:
    made = result()
    made.sample.target_prompt_logprobs.logprobs = LOGPROBS.tobytes()
    made.sample.target_prompt_logprobs.layout.CopyFrom(types.CellLayout(rows=2, width=2))
    return made


def sparse() -> types.Result:
    made = result()
    layout = types.CellLayout(rows=3, width=9, sparse=True)
    layout.crow_indices, layout.col_indices = indices(0, 1, 1, 4), indices(8, 0, 1, 2)
    made.sample.target_prompt_logprobs.logprobs = LOGPROBS.tobytes()
    made.sample.target_prompt_logprobs.layout.CopyFrom(layout)
    return made


def alternatives() -> types.Result:
    made = result()
    made.sample.prompt_alt_tokens.CopyFrom(
        types.TopkTable(token_ids=indices(5, 6, 7, 8), logprobs=LOGPROBS.tobytes(), k=2, length=2)
    )
    return made


def decoded(made: types.Result) -> object:
    tinker = pytest.importorskip("tinker", reason="the SDK is not installed")
    from tinker.proto.response_conv import deserialize_proto_response

    return deserialize_proto_response(render(made, protobuf=True).content, tinker.types.SampleResponse)


def test_dense_cells_are_a_float32_tensor_of_the_requests_shape() -> None:
    tensor = decoded(dense()).target_prompt_logprobs
    assert tensor.to_torch().tolist() == [[-1.5, -2.5], [-0.25, -3.0]]


def test_sparse_cells_keep_their_layout() -> None:
    tensor = decoded(sparse()).target_prompt_logprobs
    assert list(tensor.sparse_crow_indices) == [0, 1, 1, 4]
    assert list(tensor.sparse_col_indices) == [8, 0, 1, 2]
    assert tuple(tensor.shape) == (3, 9)


def test_draws_are_an_int64_and_a_float32_tensor() -> None:
    made = decoded(alternatives()).prompt_alt_tokens
    assert made.tokens.to_torch().tolist() == [[5, 6], [7, 8]]
    assert made.logprobs.to_torch().tolist() == [[-1.5, -2.5], [-0.25, -3.0]]


def test_json_has_the_same_numbers_and_null_for_what_was_not_asked_API_04() -> None:
    def body(made: types.Result) -> dict[str, object]:
        return dict(msgspec.json.decode(render(made, protobuf=False).content))

    assert body(result())["target_prompt_logprobs"] is None and body(result())["prompt_alt_tokens"] is None
    cells = body(sparse())["target_prompt_logprobs"]
    assert cells == {
        "data": [-1.5, -2.5, -0.25, -3.0],
        "dtype": "float32",
        "shape": [3, 9],
        "sparse_crow_indices": [0, 1, 1, 4],
        "sparse_col_indices": [8, 0, 1, 2],
    }
    assert body(alternatives())["prompt_alt_tokens"]["tokens"] == {
        "data": [5, 6, 7, 8],
        "dtype": "int64",
        "shape": [2, 2],
    }
