"""Adam's parameters, and the optimizers this mesh does not have."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.gateway.validation.numbers import above, at_least, below_one
from services.gateway.wire import bodies

_ADAM = ("adam", "adamw")


def check_optimizer(kind: str, field: str) -> None:
    """Raises InvalidInput unless `kind` is Adam."""
    if kind not in _ADAM:
        raise InvalidInput(f"{field}: optimizer {kind[:40]!r} is not supported by this mesh; use adamw")


def adam_params(body: bodies.OptimStep) -> types.AdamParams:
    """All six parameters. Raises InvalidInput naming the one out of range."""
    given = body.adam_params or body.optimizer_params or bodies.AdamParams()
    return types.AdamParams(
        learning_rate=at_least("learning_rate", given.learning_rate, 0.0),
        beta1=below_one("beta1", given.beta1),
        beta2=below_one("beta2", given.beta2),
        eps=above("eps", given.eps, 0.0),
        weight_decay=at_least("weight_decay", given.weight_decay, 0.0),
        grad_clip_norm=at_least("grad_clip_norm", given.grad_clip_norm, 0.0),
    )
