"""Seeded requests whose prompt is computed in several chunks.

Every chunk but the last samples a token that is thrown away. vLLM then rewinds the request's
random generator by an offset, which a CPU generator does not have: the engine dies. Here such
a row does not draw from its generator at all, so a seed means the same however the prompt
was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def install(worker: Any) -> None:
    """Patches the worker's model runner; called before the first request."""
    runner = worker.model_runner
    for name in ("_sample", "_bookkeeping_sync"):
        setattr(runner, name, _without_unfinished_prompts(runner, getattr(runner, name)))


def _without_unfinished_prompts(runner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        with _hidden_generators(runner):
            return original(*arguments, **named)

    return call


@contextmanager
def _hidden_generators(runner: Any) -> Iterator[None]:
    """Inside the block rows whose token is thrown away have no generator of their own."""
    batch = runner.input_batch
    rows = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
    hidden = {row: batch.generators.pop(row) for row in rows if row in batch.generators}
    try:
        yield
    finally:
        batch.generators.update(hidden)
