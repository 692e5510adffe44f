"""One forward_backward request in its three encodings."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from google.protobuf.json_format import ParseDict
from tinkermesh.wire.v1 import wire_pb2 as wire

DTYPES = {"float32": wire.DTYPE_FLOAT32, "int64": wire.DTYPE_INT64, "int32": wire.DTYPE_INT32}
ITEMS = {"float32": "<f4", "int64": "<i8", "int32": "<i4"}


def tensor(data: list[Any], dtype: str, shape: list[int] | None = None) -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": [len(data)] if shape is None else shape}


def sparse(
    data: list[Any], crow: list[int], col: list[int], shape: list[int], dtype: str = "float32"
) -> dict[str, Any]:
    return {
        "data": data,
        "dtype": dtype,
        "shape": shape,
        "sparse_crow_indices": crow,
        "sparse_col_indices": col,
    }


def datum(tokens: list[int], **inputs: dict[str, Any]) -> dict[str, Any]:
    return {"model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens}]}, "loss_fn_inputs": inputs}


def supervised(tokens: list[int], weights: list[float] | None = None) -> dict[str, Any]:
    """A cross_entropy datum; targets are the tokens themselves, shifted by nothing in particular."""
    targets = tensor([*tokens[1:], 7], "int64")
    return datum(tokens, target_tokens=targets, weights=tensor(weights or [1.0] * len(tokens), "float32"))


def policy(tokens: list[int]) -> dict[str, Any]:
    n = len(tokens)
    return datum(
        tokens,
        target_tokens=tensor([*tokens[1:], 7], "int64"),
        logprobs=tensor([-0.5] * n, "float32"),
        advantages=tensor([1.0] * n, "float32"),
    )


def request(
    model_id: str, seq_id: Any, data: list[dict[str, Any]], loss_fn: str = "cross_entropy", **more: Any
) -> dict[str, Any]:
    config = more.pop("loss_fn_config", None)
    content: dict[str, Any] = {"data": data, "loss_fn": loss_fn}
    if config is not None:
        content["loss_fn_config"] = config
    return {"forward_backward_input": content, "model_id": model_id, "seq_id": seq_id, **more}


def to_protobuf(body: dict[str, Any], *, split: bool = False) -> bytes:
    content = body["forward_backward_input"]
    message = wire.ForwardBackwardRequest(
        model_id=body["model_id"],
        seq_id=body["seq_id"],
        loss_fn=content["loss_fn"],
        forward_only=body.get("forward_only", False),
        data=[_datum(one, split) for one in content["data"]],
    )
    for key, value in (content.get("loss_fn_config") or {}).items():
        if isinstance(value, str):
            message.loss_fn_config_v2[key].text = value
        else:
            message.loss_fn_config[key] = value
            message.loss_fn_config_v2[key].number = value
    return message.SerializeToString()


def to_zstd(body: dict[str, Any]) -> bytes:
    return zstandard.ZstdCompressor().compress(to_protobuf(body))


def _datum(one: dict[str, Any], split: bool) -> wire.Datum:
    tokens = [token for chunk in one["model_input"]["chunks"] for token in chunk["tokens"]]
    pieces = [[token] for token in tokens] if split else [tokens]
    chunks = [
        wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=np.array(piece, "<i4").tobytes())) for piece in pieces
    ]
    inputs = {name: _tensor(value) for name, value in one["loss_fn_inputs"].items()}
    made = wire.Datum(model_input=chunks, loss_fn_inputs=inputs)
    for name in ("model_input_spans", "loss_fn_input_spans"):
        for span in one.get(name, ()):
            ParseDict(span, getattr(made, name).add())
    return made


def _tensor(value: dict[str, Any]) -> wire.Tensor:
    message = wire.Tensor(dtype=DTYPES[value["dtype"]], shape=value["shape"])
    values = np.array(value["data"], ITEMS[value["dtype"]]).tobytes()
    if "sparse_crow_indices" in value:
        message.sparse_csr.values = values
        message.sparse_csr.crow_indices = np.array(value["sparse_crow_indices"], "<i8").tobytes()
        message.sparse_csr.col_indices = np.array(value["sparse_col_indices"], "<i8").tobytes()
    else:
        message.dense = values
    return message
