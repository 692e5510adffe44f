"""A settled Result as the body of a retrieve_future answer."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContractViolation
from services.common.tinker_path import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS
from services.gateway.wire.render_batch import batch_json, batch_protobuf
from services.gateway.wire.render_sample import sample_json, sample_protobuf

_encode = msgspec.json.Encoder().encode


class Rendered(NamedTuple):
    content: bytes
    protobuf: bool


def render(result: types.Result, *, protobuf: bool, request_type: str = "") -> Rendered:
    """`protobuf` is what the client accepts; only batch and sample results have that form.

    `request_type` is the SDK's own name of the operation ("" when it did not say).
    """
    outcome = result.WhichOneof("outcome")
    if protobuf and outcome == "batch":
        return Rendered(batch_protobuf(result.batch), True)
    if protobuf and outcome == "sample":
        return Rendered(sample_protobuf(result.sample), True)
    return Rendered(_encode(_json(result, outcome, request_type)), False)


def _json(result: types.Result, outcome: str | None, request_type: str) -> object:
    match outcome:
        case "failure":
            return _failure(result.failure)
        case "model":
            return _model(result.model, request_type)
        case "batch":
            return batch_json(result.batch)
        case "optim_step":
            return {"metrics": dict(sorted(result.optim_step.metrics.items()))}
        case "save":
            return _save(result.save)
        case "sample":
            return sample_json(result.sample)
        case _:
            raise ContractViolation("a settled request has no outcome")


def _failure(failure: types.Failure) -> dict[str, str]:
    user = failure.category == types.FAILURE_CATEGORY_USER
    return {"error": failure.message or "the request failed", "category": "user" if user else "server"}


def _model(model: types.ModelResult, request_type: str) -> dict[str, str]:
    if model.path:
        return {"path": model.path, "model_id": model.model_id, "type": "load_weights"}
    # Creation and unloading end alike; only the SDK says which it was, and it only creates.
    return {"model_id": model.model_id, **({"type": "create_model"} if request_type == "CreateModel" else {})}


def _save(save: types.SaveResult) -> dict[str, str | int]:
    if save.sampling_session_id:
        return {"sampling_session_id": save.sampling_session_id, "type": "save_weights_for_sampler"}
    if f"/{EXTERNAL_WEIGHTS}/" in save.path:
        return {"path": save.path, "size_bytes": save.size_bytes, "type": "save_weights_external"}
    kind = "save_weights_for_sampler" if f"/{SAMPLER_WEIGHTS}/" in save.path else "save_weights"
    return {"path": save.path, "type": kind}
