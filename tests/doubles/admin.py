"""The Admin service as a test's operator uses it."""

from __future__ import annotations

import grpc
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import admin_pb2_grpc as pb_grpc

from tests.doubles.registration import scheduler_target


def list_pools(addresses: str) -> list[pb.AdminPool]:
    """From whichever of the comma-separated schedulers answers."""
    with grpc.insecure_channel(scheduler_target(addresses)) as channel:
        stub = pb_grpc.AdminStub(channel)
        reply: pb.AdminListPoolsReply = stub.ListPools(pb.AdminListPoolsRequest(), timeout=10, wait_for_ready=True)
        return list(reply.pools)


def leader(addresses: str, pool: str) -> str:
    """The replica that holds the pool's lease, "" = none."""
    return next((p.leader for p in list_pools(addresses) if p.facts.pool == pool), "")


def trainers(address: str) -> list[pb.TrainerReport]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListTrainersReply = pb_grpc.AdminStub(channel).ListTrainers(pb.ListTrainersRequest(), timeout=10)
        return list(reply.trainers)


def samplers(address: str) -> list[pb.SamplerReport]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListSamplersReply = pb_grpc.AdminStub(channel).ListSamplers(pb.ListSamplersRequest(), timeout=10)
        return list(reply.samplers)
