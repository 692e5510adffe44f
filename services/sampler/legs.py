"""What a sampler does of a request: all of it, or one leg of prefill and decode; and what each may be asked."""

from __future__ import annotations

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import SampleBody

from services.common.errors import InvalidInput

BOTH, PREFILL, DECODE = "both", "prefill", "decode"
ROLES = (BOTH, PREFILL, DECODE)
_OTHERS_LEG = {PREFILL: pb.LEG_DECODE, DECODE: pb.LEG_PREFILL}
_OF_A_PROMPT = ("prompt_logprobs", "topk_prompt_logprobs", "target_prompt_tokens", "prompt_alt_tokens_k")


def check_leg(request: pb.SampleRequest, role: str) -> None:
    """Raises InvalidInput naming the field."""
    if request.leg == pb.LEG_WHOLE:
        return
    if request.leg == _OTHERS_LEG.get(role):
        raise InvalidInput(f"leg is {pb.Leg.Name(request.leg)}; this sampler's role is {role}")
    body = request.body
    if request.leg == pb.LEG_PREFILL and body.max_tokens != 1:
        raise InvalidInput(f"max_tokens is {body.max_tokens}; a prefill leg generates 1")
    if request.leg == pb.LEG_DECODE:
        _check_decode(body)


def check_stream(request: pb.SampleStreamRequest) -> None:
    """Raises InvalidInput naming the field."""
    body = request.sample.body
    if field := _asked_of_prompt(body):
        raise InvalidInput(f"{field} is not told by a stream; use Sample")
    if request.seam_tokens > len(body.prompt_tokens) // 4:
        raise InvalidInput(
            f"seam_tokens is {request.seam_tokens}; the prompt has {len(body.prompt_tokens) // 4} tokens"
        )


def not_loaded(name: str, path: str, role: str) -> str:
    """A request that waits for a load would hold blocks of the other leg's sampler meanwhile."""
    return (
        f"adapter {name} is not loaded on this {role} sampler, and a request loads none there; load it on every "
        f"sampler that may serve it, by the scheduler's Admin.LoadAdapter or each sampler's LoadAdapter, "
        f"with name {name} and path {path[:300]}"
    )


def _check_decode(body: SampleBody) -> None:
    if len(body.prompt_tokens) < 8:
        raise InvalidInput("prompt_tokens of a decode leg are a prompt and the prefill leg's token: two at least")
    if body.num_samples != 1:
        raise InvalidInput(f"num_samples is {body.num_samples}; a decode leg goes on with one sequence")
    if field := _asked_of_prompt(body):
        raise InvalidInput(f"{field} is the prefill leg's to answer")


def _asked_of_prompt(body: SampleBody) -> str:
    cells = body.HasField("target_prompt_layout")
    asked = (body.prompt_logprobs, body.topk_prompt_logprobs, cells, body.prompt_alt_tokens_k)
    return next((name for name, wanted in zip(_OF_A_PROMPT, asked, strict=True) if wanted), "")
