"""The Admin service as the command line asks it: looks at everything, one request's timeline, what operators change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1.admin_pb2_grpc import AdminStub

from services.common.errors import from_rpc_error
from services.common.grpc_channel import blocking_channel
from services.local.tenancy_client import scheduler_of

CALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that `tinkermesh status` shows, read within one moment; of models, the first 1,000."""

    pools: list[pb.AdminPool]
    leases: list[pb.PoolLease]
    replicas: list[pb.ReplicaReport]
    trainers: list[pb.TrainerReport]
    samplers: list[pb.SamplerReport]
    slots: list[pb.SlotReport]
    models: list[pb.ModelReport]
    queues: list[pb.QueueReport]
    durable_points: list[pb.DurablePointReport]

    def as_json(self) -> dict[str, Any]:
        """The messages as grpcurl prints them with -emit-defaults: 64-bit numbers are texts."""
        return {name: [as_dict(one) for one in getattr(self, name)] for name in self.__slots__}


def as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


class AdminClient:
    def __init__(self, channel: grpc.Channel) -> None:
        self._stub: Any = AdminStub(channel)

    def overview(self, pool: str = "") -> Overview:
        """Of one pool, or of all. Raises the scheduler's own error, UnknownId for an unknown pool, Unavailable."""
        pools = self._call("ListPools", pb.AdminListPoolsRequest()).pools
        leases = self._call("ListLeases", pb.ListLeasesRequest(limit=1))
        return Overview(
            pools=[one for one in pools if pool in ("", one.facts.pool)],
            leases=[one for one in leases.pools if pool in ("", one.pool)],
            replicas=list(leases.replicas),
            trainers=self.trainers(pool),
            samplers=list(self._call("ListSamplers", pb.ListSamplersRequest(pool=pool)).samplers),
            slots=list(self._call("ListSlots", pb.ListSlotsRequest(pool=pool)).slots),
            models=list(self._call("ListModels", pb.ListModelsRequest(pool=pool)).models),
            queues=list(self._call("ListQueues", pb.ListQueuesRequest(pool=pool)).queues),
            durable_points=list(self._call("ListDurablePoints", pb.ListDurablePointsRequest(pool=pool)).points),
        )

    def request(self, request_id: str) -> pb.RequestReport:
        """Raises Gone for one that is unknown or expired, Unavailable."""
        request = pb.InspectRequestRequest(request_id=request_id)
        return cast("pb.RequestReport", self._call("InspectRequest", request))

    def trainers(self, pool: str = "") -> list[pb.TrainerReport]:
        """Raises UnknownId for an unknown pool, Unavailable."""
        return list(self._call("ListTrainers", pb.ListTrainersRequest(pool=pool)).trainers)

    def snapshots(self, pool: str = "") -> pb.ListSnapshotsReply:
        """Raises UnknownId for an unknown pool, Unavailable."""
        return cast("pb.ListSnapshotsReply", self._call("ListSnapshots", pb.ListSnapshotsRequest(pool=pool)))

    def garbage(self, pool: str, *, within_seconds: int, limit: int) -> pb.DryRunGcReply:
        """What the sweepers would delete by then. Raises UnknownId for an unknown pool, Unavailable."""
        request = pb.DryRunGcRequest(pool=pool, within_seconds=within_seconds, limit=limit)
        return cast("pb.DryRunGcReply", self._call("DryRunGc", request))

    def evict(self, model_id: str, *, pool: str, close: bool, reason: str) -> str:
        """unseated, closed or closing. Raises InvalidInput, UnknownId, InUse where that cannot be now, Unavailable."""
        request = pb.EvictModelRequest(pool=pool, model_id=model_id, close=close, reason=reason)
        return str(self._call("EvictModel", request).state)

    def requeue(self, request_id: str) -> int:
        """How many requests wait again. Raises UnknownId, InUse where it is not lost, Unavailable."""
        return int(self._call("RequeueRequest", pb.RequeueRequestRequest(request_id=request_id)).requests)

    def drain(self, pool: str, trainer_id: str, *, on: bool) -> None:
        """`on` False: it works again. Raises UnknownId, Unavailable."""
        if on:
            self._call("DrainTrainer", pb.DrainTrainerRequest(pool=pool, trainer_id=trainer_id))
        else:
            self._call("ResumeTrainer", pb.ResumeTrainerRequest(pool=pool, trainer_id=trainer_id))

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self._stub, name)(request, timeout=CALL_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(cast("grpc.aio.AioRpcError", error)) from error


@contextmanager
def admin(state_dir: Path, scheduler: str) -> Iterator[AdminClient]:
    """`scheduler`: host:port of a running mesh; "" = the mesh on `state_dir`. Raises Unavailable when none runs."""
    with blocking_channel(scheduler or scheduler_of(state_dir)) as channel:
        yield AdminClient(channel)
