"""The main path through a Tinker SDK: run as a script, by the interpreter that has the SDK's version.

    python sdk_scenario.py --base-model NAME --report FILE [--vocab 512] [--rounds 3] [--step-marks FILE]

Uses nothing but the SDK and NumPy, so any environment with an SDK can run it; the mesh is found
by TINKER_BASE_URL and TINKER_API_KEY. The report holds what happened as JSON; checks are the
test's own business.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from tinker import types

CHUNK_DATUMS = 1026  # the SDK sends at most 1,024 datums in one request
SEED = 20_261_129


def resolved(made: Any) -> Any:
    """create_* answer the client itself (0.26) or a future of it (0.38)."""
    return made.result() if hasattr(made, "result") else made


def datum(random: np.random.Generator, length: int, vocab: int) -> types.Datum:
    tokens = random.integers(1, vocab, length + 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints([int(t) for t in tokens[:-1]]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:].astype(np.int64), dtype="int64", shape=[length]),
            "weights": types.TensorData(data=np.ones(length, np.float32), dtype="float32", shape=[length]),
        },
    )


def batch(seed: int, count: int, length: int, vocab: int) -> list[types.Datum]:
    random = np.random.default_rng((SEED, seed))
    return [datum(random, length, vocab) for _ in range(count)]


def logprobs(output: Any) -> list[list[float]]:
    return [[float(x) for x in one["logprobs"].data] for one in output.loss_fn_outputs]


class Scenario:
    def __init__(self, base_model: str, vocab: int, mark: Callable[[str], None]) -> None:
        self.base_model, self.vocab, self.mark = base_model, vocab, mark
        self.service = tinker.ServiceClient(user_metadata={"scenario": "main path"})
        self.probe = batch(0, 3, 9, vocab)
        self.prompt = types.ModelInput.from_ints([5, 9, 200, 31, 7, 8])

    def run(self, rounds: int) -> dict[str, Any]:
        report: dict[str, Any] = {"sdk": tinker.__version__}
        training = resolved(
            self.service.create_lora_training_client(
                base_model=self.base_model, rank=8, seed=11, user_metadata={"purpose": "scenario"}
            )
        )
        self.mark("created")
        info = training.get_info()
        info = resolved(info)
        report["info"] = {"model_id": info.model_id, "rank": info.lora_rank, "model": info.model_data.model_name}
        report["forward"] = logprobs(training.forward(self.probe, "cross_entropy").result())
        report["chunked"] = self.chunked(training)
        report["rounds"] = [self.round(training, number) for number in range(1, rounds + 1)]
        report["saves"] = self.saves(training)
        report["sampling"] = self.sampling(report["saves"])
        report["resumed"] = self.resume(training, report["saves"]["state"])
        report["final"] = training.save_state("final").result().path
        self.mark("final")
        if hasattr(self.service, "close"):
            with suppress(TimeoutError):  # its own telemetry may hold it for ever: docs/sdk-matrix.md
                self.service.close("success").result(30)
        return report

    def chunked(self, training: Any) -> dict[str, Any]:
        """More datums than one request may hold, pipelined with the step behind it."""
        backward = training.forward_backward(batch(1, CHUNK_DATUMS, 2, self.vocab), "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=1e-3))
        output = backward.result()
        self.mark("chunked")
        losses = [-sum(lp) for lp in logprobs(output)]
        return {"datums": len(losses), "sum": output.metrics["loss:sum"], "losses": losses,
                "step": dict(step.result().metrics or {})}  # fmt: skip

    def round(self, training: Any, number: int) -> dict[str, Any]:
        backward = training.forward_backward(batch(100 + number, 6, 12, self.vocab), "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=2e-3))
        output, stepped = backward.result(), step.result()
        self.mark(f"round {number}")
        return {"sum": output.metrics["loss:sum"], "logprobs": logprobs(output), "step": dict(stepped.metrics or {})}

    def saves(self, training: Any) -> dict[str, Any]:
        state = training.save_state("state-1").result().path
        named = training.save_weights_for_sampler("sampler-1").result().path
        self.unnamed = resolved(training.save_weights_and_get_sampling_client())
        self.mark("saved")
        forward = training.forward([scored(self.prompt)], "cross_entropy").result()
        return {"state": state, "named": named, "trainer_logprobs": logprobs(forward)[0]}

    def sampling(self, saves: dict[str, Any]) -> dict[str, Any]:
        named = resolved(self.service.create_sampling_client(model_path=saves["named"]))
        base = resolved(self.service.create_sampling_client(base_model=self.base_model))
        clients = {"named": named, "unnamed": self.unnamed, "base": base}
        report = {name: self.sample(client) for name, client in clients.items()}
        self.mark("sampled")
        return report

    def sample(self, client: Any) -> dict[str, Any]:
        parameters = types.SamplingParams(max_tokens=8, temperature=1.0, seed=3)
        answer = client.sample(self.prompt, 4, parameters).result()
        scores = client.compute_logprobs(self.prompt).result()
        return {
            "tokens": [list(s.tokens) for s in answer.sequences],
            "logprobs": [[float(x) for x in s.logprobs or []] for s in answer.sequences],
            "reasons": [str(s.stop_reason) for s in answer.sequences],
            "prompt": [None if x is None else float(x) for x in scores],
        }

    def resume(self, training: Any, path: str) -> dict[str, Any]:
        """The same further step on the original, with the optimizer's state, and without it."""
        make = self.service
        clients = {
            "original": training,
            "with_optimizer": resolved(make.create_training_client_from_state_with_optimizer(path)),
            "weights_only": resolved(make.create_training_client_from_state(path)),
        }
        self.mark("resumed")
        return {name: self.continued(client) for name, client in clients.items()}

    def continued(self, training: Any) -> list[list[float]]:
        training.forward_backward(batch(900, 4, 10, self.vocab), "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=2e-3)).result()
        return logprobs(training.forward(self.probe, "cross_entropy").result())


def scored(prompt: types.ModelInput) -> types.Datum:
    """A datum whose logprobs are the prompt's own, from its second token on."""
    tokens = prompt.to_ints()
    targets = np.array(tokens[1:], np.int64)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
            "weights": types.TensorData(data=np.ones(len(targets), np.float32), dtype="float32", shape=[len(targets)]),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-marks", type=Path, help="gets a line as each stage is reached")
    arguments = parser.parse_args()
    began = time.monotonic()

    def mark(stage: str) -> None:
        line = f"{time.monotonic() - began:.3f} {stage}"
        print(line, flush=True)
        if arguments.step_marks:
            with arguments.step_marks.open("a") as file:
                file.write(line + "\n")

    report = Scenario(arguments.base_model, arguments.vocab, mark).run(arguments.rounds)
    arguments.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
