"""Our connector of vLLM: the engine makes one beside its scheduler and one beside its memory.

Both take part only once a tier is attached, and only in requests that are a leg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from services.common.errors import ServerError
from services.sampler.kv_connector.scheduler_side import SchedulerSide
from services.sampler.kv_connector.steps import StepMoves
from services.sampler.kv_connector.worker_side import WorkerSide

NAME = "TierConnector"


class TierMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    def __init__(self, moves: StepMoves) -> None:
        self.moves = moves


class TierConnector(KVConnectorBase_V1):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.caches: Mapping[str, torch.Tensor] = {}
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._pool: Any = None

    @property
    def requires_kv_delivery(self) -> bool:
        """Blocks are copied in the step that writes them: a preemption later takes nothing away."""
        return False

    def attach_scheduler(self, side: SchedulerSide) -> None:
        self._scheduler = side

    def attach_worker(self, side: WorkerSide) -> None:
        self._worker = side

    # ---- beside the memory --------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.load(self._moves())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are done when start_load_kv returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Whole blocks are saved, all layers at once, after the forward."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save(self._moves())

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    def _moves(self) -> StepMoves:
        return cast("TierMetadata", self._get_connector_metadata()).moves

    # ---- beside the scheduler -----------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    def held(self, keys: Sequence[str]) -> int:
        """How many first blocks of `keys` the engine has itself; from any thread, and true for the moment only."""
        for number, key in enumerate(keys):
            if self._pool.get_cached_block(bytes.fromhex(key), [0]) is None:
                return number
        return len(keys)

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        moves = StepMoves() if self._scheduler is None else self._scheduler.moves(scheduler_output)
        return TierMetadata(moves)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None:
            self._scheduler.forget(request.request_id)
        return False, None


def scheduler_connector(engine: Any) -> TierConnector:
    """Of vLLM's LLMEngine in this process. Raises ServerError when it has another one."""
    return _ours(engine.engine_core.engine_core.scheduler.connector)


def worker_connector() -> TierConnector:
    return _ours(get_kv_transfer_group())


def _ours(connector: object) -> TierConnector:
    if not isinstance(connector, TierConnector):
        raise ServerError(f"the engine has {type(connector).__name__}, not the tier's connector")
    return connector
