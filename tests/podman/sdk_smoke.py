"""The unmodified SDK against the gateway's container: two steps of training, and a sample. Prints JSON.

Usage: python sdk_smoke.py [TINKER_PATH]: with a path it only samples from that snapshot.
"""

from __future__ import annotations

import json
import sys

import tinker
from tinker import types

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12]
PROMPT = types.ModelInput.from_ints(TOKENS[:3])
PARAMETERS = types.SamplingParams(max_tokens=6, temperature=0.0)


def main() -> None:
    service = tinker.ServiceClient()
    if len(sys.argv) > 1:
        sampler = service.create_sampling_client(model_path=sys.argv[1]).result()
        print(json.dumps({"tokens": sampler.sample(PROMPT, 1, PARAMETERS).result().sequences[0].tokens}))
        return
    model = tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=model, rank=8, seed=3).result()
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )
    losses = []
    for _ in range(3):
        forward = training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(forward.result().metrics["loss:sum"])
    path = training.save_weights_for_sampler("smoke").result().path
    sampler = service.create_sampling_client(model_path=path).result()
    tokens = sampler.sample(PROMPT, 1, PARAMETERS).result().sequences[0].tokens
    print(json.dumps({"model": model, "losses": losses, "path": path, "tokens": tokens}))
    service.close("success").result()


if __name__ == "__main__":
    main()
