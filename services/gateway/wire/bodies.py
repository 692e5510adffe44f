"""Request bodies of the protocol, as SDK 0.38.0 and 0.26.2 send them: our own frozen contract.

Bodies that carry an order key come in two structs. The *envelope* holds the key; when it cannot
be read the POST is refused. The *content* holds it too and the rest; when it cannot be read the command is
accepted and fails in its turn, so that the client's next seq_id does not wait for a hole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, field

from services.gateway.wire.json_body import Body, Counter, Glance, Ordinal, Parameters

Metadata = dict[str, Any]
NO_METADATA = Raw(b"null")
UNREAD = Raw(b"null")


# ---- envelopes ---------------------------------------------------------------------------


class ModelEnvelope(Glance):
    model_id: str
    seq_id: Ordinal


class CreateEnvelope(Glance):
    session_id: str
    model_seq_id: Counter


class SampleEnvelope(Glance):
    sampling_session_id: str
    seq_id: Counter


class LoadEnvelope(Glance):
    """One of the two pairs; which one decides between a new model and an existing one."""

    model_id: str | None = None
    seq_id: Ordinal | None = None
    session_id: str | None = None
    model_seq_id: Counter | None = None


# ---- content -----------------------------------------------------------------------------


class LoraConfig(Parameters):
    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Parameters):
    type: str = "adamw"
    version: int | None = None


class CreateModel(CreateEnvelope, Body):
    base_model: str
    user_metadata: Raw = NO_METADATA
    lora_config: LoraConfig = field(default_factory=LoraConfig)
    optimizer_config: OptimizerConfig = field(default_factory=OptimizerConfig)
    type: Literal["create_model"] = "create_model"


class AdamParams(Parameters):
    """SDK defaults, frozen here; the scheduler always gets all six."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    type: Literal["adamw", "adam"] = "adamw"


class OptimizerKind(Glance):
    type: str = "adamw"


class OptimStepKind(Glance):
    """Read before the parameters themselves, whose fields depend on the optimizer's type."""

    optimizer_params: OptimizerKind | None = None


class OptimStep(ModelEnvelope, Body):
    adam_params: AdamParams | None = None
    optimizer_params: AdamParams | None = None
    type: Literal["optim_step"] = "optim_step"


class SaveWeights(ModelEnvelope, Body):
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Raw = NO_METADATA
    type: Literal["save_weights"] = "save_weights"


class SaveForSampler(ModelEnvelope, Body):
    path: str | None = None
    sampling_session_seq_id: Counter | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: Raw = NO_METADATA
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class SaveExternal(ModelEnvelope, Body):
    path: str
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class LoadWeights(LoadEnvelope, Body, kw_only=True):
    path: str
    optimizer: bool = False
    base_model: str | None = None
    user_metadata: Raw = NO_METADATA
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = "load_weights"


class Chunk(Body):
    """encoded_text carries `tokens`; every other type is refused by name, so what it carries is not read."""

    type: str = "encoded_text"
    tokens: list[int] | None = None
    data: Raw = UNREAD
    dmel: Raw = UNREAD
    location: Raw = UNREAD
    format: Raw = UNREAD
    expected_tokens: Raw = UNREAD


class ModelInput(Body):
    chunks: list[Chunk]


class TensorData(Body):
    data: list[float | int]
    dtype: str
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class SamplingParams(Parameters):
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Sample(SampleEnvelope, Body):
    prompt: ModelInput
    num_samples: int = 1
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool = False
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["sample"] = "sample"


class SampleCount(Glance):
    """Read even from broken content: the answer announces one sequence id per sample."""

    num_samples: Raw = Raw(b"1")


class ProvenanceRun(Body):
    sequence_id: str
    offset: int = 0
    length: int = 0


class ProvenanceSpan(Body):
    """Exactly one of the two."""

    prompt_tokens: ProvenanceRun | None = None
    sampled_tokens: ProvenanceRun | None = None


class Datum(Body):
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]
    model_input_spans: list[ProvenanceSpan] | None = None
    loss_fn_input_spans: list[ProvenanceSpan] | None = None


class LossInput(Body):
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class ForwardBackward(ModelEnvelope, Body):
    """JSON form of forward_backward, and of the older `forward` (`forward_input`)."""

    forward_backward_input: LossInput | None = None
    forward_input: LossInput | None = None
    forward_only: bool = False
    type: Literal["forward_backward", "forward"] = "forward_backward"


# ---- bodies without an order key ---------------------------------------------------------


Label = Annotated[str, Meta(max_length=1024)]


class CreateSession(Body):
    tags: Annotated[list[Label], Meta(max_length=128)] = []
    user_metadata: Raw = NO_METADATA
    sdk_version: Label = ""
    project_id: Label | None = None
    display_name: Label | None = None
    type: Literal["create_session"] = "create_session"


class Nothing(Body):
    """auth/token."""


class SdkVersion(Body):
    """client/config, client/dynamic_config."""

    sdk_version: Label = ""


class SdkVersionOf(Glance):
    sdk_version: Label = ""


class SessionId(Body):
    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class FinishReason(Body):
    type: Literal["success", "errored", "interrupted"] = "success"


class FinishSession(Body):
    reason: FinishReason = field(default_factory=FinishReason)
    detail: str | None = None


class ModelOnly(Body):
    model_id: str
    type: Literal["get_info", "unload_model"] = "get_info"


class RequestOnly(Body):
    request_id: str
    allow_metadata_only: bool = False


class WeightsPath(Body):
    tinker_path: str
    weights_access_token: str | None = None


class CreateSamplingSession(Body):
    session_id: str
    sampling_session_seq_id: Counter
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class SamplingSessionId(Body):
    sampling_session_id: str
    type: Literal["join_sampling_session"] = "join_sampling_session"


Cursor = Annotated[int, Meta(ge=0, le=1 << 53)]


class FuturesTarget(Body):
    sampling_session_id: str
    cloned_sampler_id: Counter = 0
    type: Literal["sampling_session"] = "sampling_session"


class RetrieveFutures(Body):
    target: FuturesTarget
    prev_cursor: Cursor = 0
    timeout: Annotated[float, Meta(ge=0)] | None = None
    retrieved_request_ids: Annotated[list[Label], Meta(max_length=65_536)] = []
