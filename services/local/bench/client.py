"""One client of the measurement: it has a model of its own, trains it, and samples from it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from http import HTTPStatus
from threading import Event
from typing import Any

import msgspec

from services.common.errors import TinkermeshError, Unavailable
from services.common.tinker_path import parse_tinker_path
from services.local.bench.figures import Timed
from services.local.gateway_client import GatewayClient

PATIENCE_SECONDS = 120.0
LATER = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
ADAM = {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}
TOKENS = range(1, 256)  # every vocabulary has these
SNAPSHOT_SECONDS = 3_600  # should the command be cut off, the mesh deletes it then
Json = dict[str, Any]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: of each of the two phases; `tokens`: of a datum and of a prompt with its output."""

    model: str
    samples: bool = True
    seconds: float = 10.0
    clients: int = 4
    datums: int = 4
    tokens: int = 128
    rank: int = 8
    sampled: int = 16


class OperationFailed(Exception):
    """A command that was accepted and came to an error; the text is what its client is told."""


class Client:
    """For one thread; `stop` ends every wait."""

    def __init__(self, gateway: GatewayClient, load: Load, session: str, number: int, stop: Event) -> None:
        self._gateway = gateway
        self._load = load
        self._session = session
        self._number = number
        self._stop = stop
        self._random = random.Random(number)
        self._seq = 0
        self._model = ""
        self._snapshot = ""
        self.timed: list[Timed] = []
        self.refused = 0

    def create(self) -> None:
        """Raises OperationFailed or a TinkermeshError; so do all below, unless they say otherwise."""
        lora = {"rank": self._load.rank, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}
        body = {"session_id": self._session, "model_seq_id": self._number, "base_model": self._load.model}
        self._model = str(self._outcome(self._submit("create_model", {**body, "lora_config": lora}))["model_id"])

    def train(self, until: float) -> None:
        """Steps as a training loop makes them: both commands are sent, then both results are awaited.

        Never raises, and ends with the first step that fails: its model is closed.
        """
        while time.monotonic() < until and not self._stop.is_set():
            content = {"data": [self._datum() for _ in range(self._load.datums)], "loss_fn": "cross_entropy"}
            tokens = self._load.datums * (self._load.tokens - 1)
            passed = self._begin("forward_backward", {**self._next(), "forward_backward_input": content})
            stepped = self._begin("optim_step", {**self._next(), "adam_params": ADAM})
            good = self._end("forward_backward", *passed, tokens)
            if not self._end("optim_step", *stepped, 0) or not good:
                return

    def prepare_samples(self) -> str:
        """A sampling session on this client's own snapshot."""
        save = {**self._next(), "path": "tinkermesh-bench", "kind": "snapshot", "ttl_seconds": SNAPSHOT_SECONDS}
        self._snapshot = str(self._outcome(self._submit("save_weights_for_sampler", save))["path"])
        body = {"session_id": self._session, "sampling_session_seq_id": self._number, "model_path": self._snapshot}
        return str(self._post("create_sampling_session", body)["sampling_session_id"])

    def sample(self, sampling_session: str, until: float) -> None:
        """One after the other, to the first that fails. Never raises."""
        number = 0
        parameters = {"max_tokens": self._load.sampled, "temperature": 1.0}
        while time.monotonic() < until and not self._stop.is_set():
            prompt = self._tokens(max(1, self._load.tokens - self._load.sampled))
            body = {"sampling_session_id": sampling_session, "seq_id": number, "num_samples": 1}
            chunks = {"chunks": [{"type": "encoded_text", "tokens": prompt}]}
            began = self._begin("asample", {**body, "prompt": chunks, "sampling_params": parameters})
            if not self._end("sample", *began, 0):
                return
            number += 1

    def clean_up(self) -> None:
        """What it made goes again."""
        if self._snapshot:
            path = parse_tinker_path(self._snapshot)
            self._gateway.delete(f"training_runs/{path.model_id}/checkpoints/{path.checkpoint_id}")
        if self._model:
            self._submit("unload_model", {"model_id": self._model})

    def close(self) -> None:
        self._gateway.close()

    def _next(self) -> Json:
        self._seq += 1
        return {"model_id": self._model, "seq_id": self._seq}

    def _datum(self) -> Json:
        tokens = self._tokens(self._load.tokens)
        count = len(tokens) - 1
        inputs = {
            "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [count]},
            "weights": {"data": [1.0] * count, "dtype": "float32", "shape": [count]},
        }
        return {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
            "loss_fn_inputs": inputs,
        }

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(TOKENS, k=count)

    def _begin(self, path: str, body: Json) -> tuple[float, str, str]:
        """(when it began, its request id, why it was not accepted)."""
        began = time.monotonic()
        try:
            return began, self._submit(path, body), ""
        except TinkermeshError as error:
            return began, "", error.message

    def _end(self, op: str, began: float, request_id: str, failure: str, tokens: int) -> bool:
        """Whether it succeeded."""
        try:
            if request_id:
                tokens += sampled_tokens(self._outcome(request_id))
        except (OperationFailed, TinkermeshError) as error:
            failure = str(error)
        if not self._stop.is_set():
            self.timed.append(Timed(op, time.monotonic() - began, tokens, failure))
        return not failure

    def _submit(self, path: str, body: Json) -> str:
        return str(self._post(path, body)["request_id"])

    def _outcome(self, request_id: str) -> Json:
        answer: Json = self._post("retrieve_future", {"request_id": request_id})
        if "error" in answer:
            raise OperationFailed(str(answer["error"])[:300])
        return answer

    def _post(self, path: str, body: Json) -> Any:
        """Waits while the mesh is busy or the result is not there, until patience ends."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, answer = self._gateway.request("POST", path, body)
            later = status in LATER
            if not later and status != HTTPStatus.REQUEST_TIMEOUT:
                return self._gateway.checked(status, answer)
            if time.monotonic() > until:
                raise Unavailable(f"{path}: HTTP {status} for {PATIENCE_SECONDS:.0f} s")
            self.refused += later
            if self._stop.wait(1.0 if later else 0.0):
                raise Unavailable("stopped")


def sampled_tokens(answer: Json) -> int:
    """Of a sample's result; 0 of any other."""
    sequences: Sequence[Json] = answer.get("sequences") or ()
    return sum(len(one.get("tokens") or ()) for one in sequences)
