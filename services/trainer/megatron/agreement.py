"""Ranks agree on success before they meet in a collective, so that one rank's error strands nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from services.common.errors import ServerError
from services.trainer.megatron.runtime import Runtime


@contextmanager
def agree(runtime: Runtime) -> Iterator[None]:
    """After the block, every data-parallel replica raises if any of them did: its own error, or ServerError."""
    if runtime.dp_size == 1:
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the peers wait for this rank's vote whatever went wrong
        own = error
    failed = torch.tensor([own is not None], dtype=torch.int32, device=runtime.device)
    runtime.sum_over_dp(failed)
    if own is not None:
        raise own
    if int(failed):
        raise ServerError(f"the pass failed on {int(failed)} other data-parallel rank(s)")
