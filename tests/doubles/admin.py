"""The mesh as a test's operator sees it: the Admin service, a sampler's own words, channelz."""

from __future__ import annotations

import grpc
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import admin_pb2_grpc as pb_grpc
from tinkermesh.v1 import sampler_pb2, sampler_pb2_grpc

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


def recovery(addresses: str, pool: str = "double") -> pb.Recovery:
    """What recovery has done in the pool."""
    return next(p.recovery for p in list_pools(addresses) if p.facts.pool == pool)


def models(address: str) -> list[pb.ModelReport]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListModelsReply = pb_grpc.AdminStub(channel).ListModels(pb.ListModelsRequest(), timeout=10)
        return list(reply.models)


def trainers(address: str) -> list[pb.TrainerReport]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListTrainersReply = pb_grpc.AdminStub(channel).ListTrainers(pb.ListTrainersRequest(), timeout=10)
        return list(reply.trainers)


def samplers(address: str) -> list[pb.SamplerReport]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListSamplersReply = pb_grpc.AdminStub(channel).ListSamplers(pb.ListSamplersRequest(), timeout=10)
        return list(reply.samplers)


def snapshots(address: str) -> list[pb.SamplerSnapshots]:
    with grpc.insecure_channel(address) as channel:
        reply: pb.ListSnapshotsReply = pb_grpc.AdminStub(channel).ListSnapshots(pb.ListSnapshotsRequest(), timeout=10)
        return list(reply.samplers)


def session(address: str, session_id: str) -> pb.SessionReport | None:
    """As the scheduler at `address` lists it among the latest."""
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.AdminStub(channel)
        reply: pb.ListSessionsReply = stub.ListSessions(pb.ListSessionsRequest(limit=1000), timeout=10)
        return next((one for one in reply.sessions if one.session_id == session_id), None)


def session_count(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.AdminStub(channel)
        reply: pb.ListSessionsReply = stub.ListSessions(pb.ListSessionsRequest(limit=1000), timeout=10)
        return len(reply.sessions)


def timeline(address: str, request_id: str) -> list[str]:
    """The events of one request, oldest first."""
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.AdminStub(channel)
        reply: pb.RequestReport = stub.InspectRequest(pb.InspectRequestRequest(request_id=request_id), timeout=10)
        return [entry.event for entry in reply.timeline]


def running_samples(address: str) -> int:
    """As the sampler at `address` itself says."""
    with grpc.insecure_channel(address) as channel:
        stub = sampler_pb2_grpc.SamplerStub(channel)
        return int(stub.Describe(sampler_pb2.DescribeSamplerRequest(), timeout=10).running)


def calls_served(address: str) -> int:
    """RPCs that a gRPC server has answered since it started."""
    with grpc.insecure_channel(address) as channel:
        stub = channelz_pb2_grpc.ChannelzStub(channel)
        servers = stub.GetServers(channelz_pb2.GetServersRequest(), timeout=10).server
        return sum(server.data.calls_succeeded for server in servers)


def drain(address: str, pool: str, trainer_id: str, *, on: bool) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.AdminStub(channel)
        if on:
            stub.DrainTrainer(pb.DrainTrainerRequest(pool=pool, trainer_id=trainer_id), timeout=10)
        else:
            stub.ResumeTrainer(pb.ResumeTrainerRequest(pool=pool, trainer_id=trainer_id), timeout=10)
