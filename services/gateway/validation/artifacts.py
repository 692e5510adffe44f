"""Saves and loads: names, paths, lifetimes."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.tinker_path import SAMPLER_WEIGHTS, WEIGHTS, check_name, parse_tinker_path
from services.gateway.validation.numbers import whole
from services.gateway.wire import bodies
from services.gateway.wire.json_body import canonical_json

_TEN_YEARS = 10 * 366 * 24 * 3600


def save_weights(body: bodies.SaveWeights) -> types.SaveWeightsBody:
    """Raises InvalidInput."""
    saved = types.SaveWeightsBody(
        name=check_name(body.path, "path") if body.path is not None else "",
        overwrite=body.overwrite,
        user_metadata_json=canonical_json(body.user_metadata),
    )
    if (seconds := ttl(body.ttl_seconds)) is not None:
        saved.ttl_seconds = seconds
    return saved


def save_external(body: bodies.SaveExternal) -> types.SaveExternalBody:
    """Raises InvalidInput."""
    if body.age_encryption_recipients:
        raise InvalidInput(
            "age_encryption_recipients: this mesh does not encrypt exports; leave it out and encrypt what you download"
        )
    return types.SaveExternalBody(name=check_name(body.path, "path"), ttl_seconds=ttl(body.ttl_seconds))


def ttl(seconds: int | None) -> int | None:
    """Raises InvalidInput."""
    return None if seconds is None else whole("ttl_seconds", seconds, 1, _TEN_YEARS)


def save_for_sampler(body: bodies.SaveForSampler) -> types.SaveForSamplerBody:
    """Raises InvalidInput unless exactly one of a name and a sampling_session_seq_id is given."""
    if (body.path is None) == (body.sampling_session_seq_id is None):
        raise InvalidInput("give either path (a name) or sampling_session_seq_id (an unnamed sampler), not both")
    saved = types.SaveForSamplerBody(
        name=check_name(body.path, "path") if body.path is not None else "",
        inflight=body.kind == "inflight",
        user_metadata_json=canonical_json(body.user_metadata),
    )
    if body.sampling_session_seq_id is not None:
        saved.sampling_session_seq_id = body.sampling_session_seq_id
    if (seconds := ttl(body.ttl_seconds)) is not None:
        saved.ttl_seconds = seconds
    return saved


def training_path(path: str) -> str:
    """A path that can be loaded for training. Raises InvalidInput."""
    parsed = parse_tinker_path(path)
    if parsed.kind != WEIGHTS:
        what = "a sampler snapshot" if parsed.kind == SAMPLER_WEIGHTS else "an export"
        raise InvalidInput(f"path: {path!r} is {what}; load a {WEIGHTS}/ checkpoint (save_state makes one)")
    return path


def sampler_path(path: str) -> str:
    """A path that can be sampled from. Raises InvalidInput."""
    parsed = parse_tinker_path(path, "model_path")
    if parsed.kind != SAMPLER_WEIGHTS:
        what = "a training checkpoint" if parsed.kind == WEIGHTS else "an export"
        raise InvalidInput(
            f"model_path: {path!r} is {what}; sample from a {SAMPLER_WEIGHTS}/ snapshot "
            "(save_weights_for_sampler makes one)"
        )
    return path
