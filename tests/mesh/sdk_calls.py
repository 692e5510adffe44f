"""Every public method of the SDK with arguments it can be called with, and which ones the mesh refuses.

A name ``X_async`` takes the arguments of ``X``. Whatever is not listed here fails the coverage test.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tinker
from tinker import types

PROMPT = types.ModelInput.from_ints([5, 9, 200, 31, 7, 8])
YESTERDAY, TODAY = datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)  # noqa: DTZ001 - the SDK adds UTC


def datum(length: int = 6) -> types.Datum:
    tokens = np.arange(3, 3 + length, dtype=np.int64)
    return types.Datum(
        model_input=types.ModelInput.from_ints([int(token) for token in tokens]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens + 1, dtype="int64", shape=[length]),
            "weights": types.TensorData(data=np.ones(length, np.float32), dtype="float32", shape=[length]),
        },
    )


def negative_likelihood(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss}


def batch_loss(data: list[types.Datum], logprobs: list[Any]) -> Any:
    loss = -sum(one.sum() for one in logprobs)
    return loss, {"nll": float(loss)}


class Tour:
    """The clients a call may need, and the checkpoints it may spend."""

    def __init__(self, base_model: str, sdk_session: str = "api coverage") -> None:
        self.base_model = base_model
        self._numbers = itertools.count()
        self.service = tinker.ServiceClient(user_metadata={"purpose": sdk_session}, project_id="project-1")
        self.rest = self.service.create_rest_client()
        self.admin = tinker.AdminClient()

    @cached_property
    def training(self) -> Any:
        return self.service.create_lora_training_client(self.base_model, rank=4, seed=1).result()

    @cached_property
    def sampling(self) -> Any:
        return self.service.create_sampling_client(base_model=self.base_model).result()

    @property
    def session_id(self) -> str:
        return self.run_id.split(":")[0]

    @property
    def run_id(self) -> str:
        return str(self.training.model_id)

    def name(self) -> str:
        return f"ck-{next(self._numbers)}"

    def state(self) -> str:
        return str(self.training.save_state(self.name()).result().path)

    def snapshot(self) -> str:
        return str(self.training.save_weights_for_sampler(self.name()).result().path)

    def external(self) -> str:
        return str(self.training.save_weights_external(self.name()).result().path)


class Keywords(dict[str, Any]):
    """Keyword arguments among the positional ones."""


Arguments = Callable[[Tour], tuple[Any, ...]]


def _none(tour: Tour) -> tuple[Any, ...]:
    return ()


def _batch(tour: Tour) -> tuple[Any, ...]:
    return ([datum(), datum(9)], "cross_entropy")


SERVICE: dict[str, Arguments] = {
    "create_lora_training_client": lambda tour: (tour.base_model, 4),
    "create_training_client_from_state": lambda tour: (tour.state(),),
    "create_training_client_from_state_with_optimizer": lambda tour: (tour.state(),),
    "create_sampling_client": lambda tour: (tour.snapshot(),),
    "create_custom_loss": lambda tour: (negative_likelihood, {"logprobs": 1, "weights": 1}),
    "copy_weights": lambda tour: (tour.state(),),
    "create_rest_client": _none,
    "get_console_url": _none,
    "get_server_capabilities": _none,
    "get_telemetry": _none,
    "holder": _none,
    "close": lambda tour: ("success",),
}
TRAINING: dict[str, Arguments] = {
    "forward": _batch,
    "forward_backward": _batch,
    "forward_backward_custom": lambda tour: ([datum()], batch_loss),
    "optim_step": lambda tour: (types.AdamParams(),),
    "get_info": _none,
    "get_tokenizer": _none,
    "get_console_url": _none,
    "get_telemetry": _none,
    "save_state": lambda tour: (tour.name(),),
    "load_state": lambda tour: (tour.state(),),
    "load_state_with_optimizer": lambda tour: (tour.state(),),
    "save_weights_for_sampler": lambda tour: (tour.name(),),
    "save_weights_external": lambda tour: (tour.name(),),
    "save_weights_and_get_sampling_client": _none,
    "create_sampling_client": lambda tour: (tour.snapshot(),),
}
SAMPLING: dict[str, Arguments] = {
    "sample": lambda tour: (PROMPT, 2, types.SamplingParams(max_tokens=4)),
    "compute_logprobs": lambda tour: (PROMPT,),
    "get_base_model": _none,
    "get_sampler_handle": _none,
    "get_telemetry": _none,
    "get_tokenizer": _none,
    "on_queue_state_change": lambda tour: (_active(), None),
    "create": lambda tour: (tour.service.holder, Keywords(base_model=tour.base_model)),
    "from_sampler_handle": lambda tour: (tour.sampling.get_sampler_handle(),),
}
WINDOW: Arguments = lambda tour: (YESTERDAY, TODAY)  # noqa: E731 - one of a table's columns
ADMIN: dict[str, Arguments] = {
    "get_audit_log": _none,
    "get_billing_usage": WINDOW,
    "get_current_checkpoint_storage_usage": _none,
    "get_telemetry": _none,
}
REST: dict[str, Arguments] = {
    **ADMIN,
    "assign_session_project": lambda tour: (tour.session_id, "project-1"),
    "copy_weights": lambda tour: (tour.state(), "project-1"),
    "delete_checkpoint": lambda tour: (tour.run_id, tour.state().split(f"{tour.run_id}/")[1]),
    "delete_checkpoint_from_tinker_path": lambda tour: (tour.state(),),
    "export_session_trace": lambda tour: (tour.session_id,),
    "get_external_weights_urls": lambda tour: (tour.external(),),
    "get_sampler": lambda tour: (tour.sampling._sampling_session_id,),
    "get_server_capabilities": _none,
    "get_session": lambda tour: (tour.session_id,),
    "get_training_run": lambda tour: (tour.run_id,),
    "get_training_run_by_tinker_path": lambda tour: (tour.state(),),
    "get_weights_info_by_tinker_path": lambda tour: (tour.state(),),
    "list_checkpoints": lambda tour: (tour.run_id,),
    "list_sessions": _none,
    "list_training_runs": _none,
    "list_user_checkpoints": _none,
    "publish_checkpoint_from_tinker_path": lambda tour: (tour.state(),),
    "search_sessions": lambda tour: (types.SessionSearchRequest(),),
    "set_checkpoint_ttl_from_tinker_path": lambda tour: (tour.state(), 3600),
    "unpublish_checkpoint_from_tinker_path": lambda tour: (tour.state(),),
    "whoami": _none,
}
CLIENTS: dict[str, tuple[str, dict[str, Arguments]]] = {
    "ServiceClient": ("service", SERVICE),
    "TrainingClient": ("training", TRAINING),
    "SamplingClient": ("sampling", SAMPLING),
    "RestClient": ("rest", REST),
    "AdminClient": ("admin", ADMIN),
}
# Method (without _async) -> a part of the text it is refused with.
REFUSED: dict[str, str] = {
    "AdminClient.get_audit_log": "audit lines go to the operator's log",
    "AdminClient.get_billing_usage": "this mesh does not bill",
    "AdminClient.get_current_checkpoint_storage_usage": "this mesh does not bill",
    "RestClient.get_audit_log": "audit lines go to the operator's log",
    "RestClient.get_billing_usage": "this mesh does not bill",
    "RestClient.get_current_checkpoint_storage_usage": "this mesh does not bill",
    "RestClient.export_session_trace": "traces go to the operator's OpenTelemetry collector",
}


def _active() -> Any:
    from tinker.lib.api_future_impl import QueueState

    return QueueState.ACTIVE
