"""One rank's place among the ranks of a trainer: device, backend and process groups."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from services.common.errors import InvalidInput
from services.trainer.megatron import cpu_shims

GROUP_TIMEOUT = datetime.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel dimensions; the world is tensor x data."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    context: int = 1

    def check(self, world: int) -> None:
        """Raises InvalidInput for dimensions that are not supported or do not fill the world."""
        for name in ("pipeline", "expert", "context"):
            if getattr(self, name) != 1:
                raise InvalidInput(
                    f"{name} parallelism is not supported: {name}_parallel must be 1, not {getattr(self, name)}; "
                    "use tensor_parallel and data_parallel"
                )
        if self.tensor < 1 or self.data < 1 or self.tensor * self.data != world:
            raise InvalidInput(
                f"tensor_parallel {self.tensor} x data_parallel {self.data} must equal the number of ranks {world}"
            )


@dataclass(frozen=True, slots=True)
class Runtime:
    """Groups are this rank's; a group of size 1 is never used for communication."""

    device: torch.device
    rank: int
    world: int
    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int
    tp_group: dist.ProcessGroup
    dp_group: dist.ProcessGroup

    def sum_over_tp(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce in place over the tensor-parallel ranks."""
        if self.tp_size > 1:
            dist.all_reduce(tensor, group=self.tp_group)
        return tensor

    def max_over_tp(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce (maximum) in place over the tensor-parallel ranks."""
        if self.tp_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.tp_group)
        return tensor

    def sum_over_dp(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce in place over the data-parallel ranks."""
        if self.dp_size > 1:
            dist.all_reduce(tensor, group=self.dp_group)
        return tensor


def start_runtime(parallelism: Parallelism, rank: int, world: int, init_method: str) -> Runtime:
    """Join the process group (or use the one already joined) and cut it into TP and DP groups.

    `init_method` is torch.distributed's; a world of one rank needs none.
    """
    parallelism.check(world)
    cpu_shims.apply()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if not dist.is_initialized():
        _join("cpu:gloo,cuda:nccl" if cuda else "gloo", rank, world, init_method)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=parallelism.tensor)
    return Runtime(
        device=torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"),
        rank=rank,
        world=world,
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=parallelism.tensor,
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallelism.data,
        tp_group=parallel_state.get_tensor_model_parallel_group(),
        dp_group=parallel_state.get_data_parallel_group(),
    )


def stop_runtime() -> None:
    """Leave all groups."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def _join(backend: str, rank: int, world: int, init_method: str) -> None:
    if world == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=GROUP_TIMEOUT)
    else:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world, timeout=GROUP_TIMEOUT)
