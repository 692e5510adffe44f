"""Run as a script: one tour through the SDK; what came back is written as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from tinker import types


def datum(length: int, **inputs: Any) -> types.Datum:
    tokens = [int(t) for t in range(1, length + 1)]
    given = inputs or {"target_tokens": np.array(tokens, np.int64), "weights": np.ones(length, np.float32)}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=given)


def main(base_model: str, report: Path) -> None:
    seen: dict[str, Any] = {}
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=3).result()
    pair = [datum(5), datum(7)]
    forward_backward = training.forward_backward(pair, "cross_entropy")
    optim = training.optim_step(types.AdamParams(learning_rate=1e-3))
    output = forward_backward.result()
    seen["loss"] = output.metrics["loss:sum"]
    seen["lengths"] = [len(one["logprobs"].data) for one in output.loss_fn_outputs]
    seen["optim"] = optim.result().metrics
    seen["chunks"] = len(training.forward_backward([datum(4)] * 1030, "cross_entropy").result().loss_fn_outputs)
    rl = datum(
        3,
        target_tokens=np.array([1, 2, 3], np.int64),
        logprobs=np.array([-1, -1, -1], np.float32),
        advantages=np.array([0, 1, 1], np.float32),
    )
    training.forward_backward([rl], "ppo", {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}).result()
    try:
        training.forward_backward([datum(3, weights=np.ones(3, np.float32))], "cross_entropy").result()
    except tinker.RequestFailedError as error:
        seen["failure"], seen["category"] = str(error), str(error.category)
    seen["state"] = training.save_state("ck1").result().path
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=3, temperature=0.7, stop=["\n"])
    prompt = types.ModelInput.from_ints([1, 2, 3])
    response = sampler.sample(prompt, num_samples=3, sampling_params=params).result()
    seen["samples"] = [list(map(int, s.tokens)) for s in response.sequences]
    seen["sequence_ids"] = len({s.sequence_id for s in response.sequences})
    seen["prompt_logprobs"] = sampler.compute_logprobs(prompt).result()
    base = service.create_sampling_client(base_model=base_model)
    base = base.result() if hasattr(base, "result") else base
    base.sample(prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=2)).result()
    loaded = service.create_training_client_from_state_with_optimizer(seen["state"])
    loaded = loaded.result() if hasattr(loaded, "result") else loaded
    info = loaded.get_info()
    seen["loaded"] = (info.result() if hasattr(info, "result") else info).model_id
    report.write_text(json.dumps(seen))
    service.close("success").result()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
