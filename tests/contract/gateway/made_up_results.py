"""What the doubled scheduler answers a command with: deterministic numbers of the right shapes."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1 import types_pb2 as types

from tests.contract.gateway.submitted import Submitted


def outcome(one: Submitted) -> types.Result:
    command = one.command
    if command.rejected:
        return types.Result(failure=types.Failure(category=types.FAILURE_CATEGORY_USER, message=command.rejected))
    match command.WhichOneof("body"):
        case "create_model" | "unload_model":
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id))
        case "create_from_checkpoint":
            path = command.create_from_checkpoint.path
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id, path=path))
        case "load_weights":
            path = command.load_weights.path
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id, path=path))
        case "batch":
            return types.Result(batch=_batch(command.batch))
        case "optim_step":
            return types.Result(optim_step=types.OptimResult(metrics={"grad_norm": 1.5, "step": 1.0}))
        case "save_weights":
            name = command.save_weights.name or f"checkpoint-{one.request.model.seq_id:06d}"
            return types.Result(save=types.SaveResult(path=f"tinker://{one.reply.model_id}/weights/{name}"))
        case "save_external":
            path = f"tinker://{one.reply.model_id}/external_weights/{command.save_external.name}"
            return types.Result(save=types.SaveResult(path=path, size_bytes=99))
        case "save_for_sampler":
            return types.Result(save=_sampler_save(one))
        case "sample":
            return types.Result(sample=_sample(command.sample))
    raise AssertionError(f"no outcome for {command}")


def _batch(body: types.BatchBody) -> types.BatchResult:
    lengths, widths = list(body.table.lengths), list(body.table.widths)
    total = sum(n * k for n, k in zip(lengths, widths, strict=True))
    losses = [float(n) for n in lengths]
    return types.BatchResult(
        loss_sum=sum(losses),
        datum_losses=losses,
        lengths=lengths,
        widths=widths,
        columns=body.table.columns,
        logprobs=(-np.arange(total, dtype="<f4") / 8).tobytes(),
        metrics={"tokens:sum": float(sum(lengths))},
    )


def _sampler_save(one: Submitted) -> types.SaveResult:
    body, model_id = one.command.save_for_sampler, one.reply.model_id
    if body.HasField("sampling_session_seq_id"):
        session = model_id.partition(":")[0]
        return types.SaveResult(
            path=f"tinker://{model_id}/sampler_weights/1",
            sampling_session_id=f"{session}:sample:{body.sampling_session_seq_id}:double",
        )
    return types.SaveResult(path=f"tinker://{model_id}/sampler_weights/{body.name}")


def _sample(body: types.SampleBody) -> types.SampleResult:
    count = min(3, body.max_tokens)
    prompt = len(body.prompt_tokens) // 4
    sequences = []
    for index in range(body.num_samples):
        tokens = (np.arange(count, dtype="<i4") + 10 * index + 5).tobytes()
        logprobs = (-np.ones(count, dtype="<f4") / 4).tobytes()
        sequences.append(types.SampledSequence(tokens=tokens, logprobs=logprobs, stopped=index % 2 == 0))
    result = types.SampleResult(sequences=sequences, prompt_cache_hit_tokens=1)
    if body.prompt_logprobs:
        values = -np.arange(prompt, dtype="<f4")
        values[0] = np.nan
        result.prompt_logprobs = values.tobytes()
    if k := body.topk_prompt_logprobs:
        ids, scores = np.zeros((prompt, k), "<i4"), np.full((prompt, k), -99999.0, "<f4")
        ids[1:, 0], scores[1:, 0] = 7, -0.5
        result.topk_prompt_logprobs.CopyFrom(
            types.TopkTable(token_ids=ids.tobytes(), logprobs=scores.tobytes(), k=k, length=prompt)
        )
    return result
