"""The doubled scheduler's console: made-up numbers for what a tenant owns, and a record of what was asked."""

from __future__ import annotations

from typing import Any

from tinkermesh.v1 import console_pb2 as pb
from tinkermesh.v1.console_pb2_grpc import ConsoleServicer

from services.common.errors import InvalidInput
from tests.contract.gateway.belongings import Belongings
from tests.contract.gateway.submitted import BASE_MODEL

NOW_MS = 1_700_000_000_000


class FakeConsole(ConsoleServicer):
    def __init__(self, belongings: Belongings) -> None:
        self.belongings = belongings
        self.asked: list[Any] = []
        self.named = "a run"
        self.loss_sum = 6.0

    @property
    def last(self) -> Any:
        return self.asked[-1]

    def point(self, step: int) -> pb.CurvePoint:
        return pb.CurvePoint(step=step, unix_ms=NOW_MS, loss_sum=self.loss_sum, positions=4, learning_rate=0.5)

    def run(self, run_id: str) -> pb.ConsoleRun:
        return pb.ConsoleRun(
            run_id=run_id,
            name=self.named,
            base_model=BASE_MODEL,
            rank=8,
            created_unix_ms=NOW_MS,
            last_request_unix_ms=NOW_MS + 1,
            state="ready",
            steps=2,
            last=self.point(2),
            queued=3,
        )

    async def ListRuns(self, request: Any, context: Any) -> pb.ListConsoleRunsReply:
        self.asked.append(request)
        if len(request.text) > 200:
            raise InvalidInput(f"text: {len(request.text)} characters; 200 at most")
        own = [run for run, (tenant, _) in self.belongings.models.items() if tenant == request.tenant_id]
        searched = len(own) if request.text else 0
        runs = [self.run(one) for one in own]
        return pb.ListConsoleRunsReply(runs=runs, total_count=len(own), searched_count=searched, known_count=len(own))

    async def GetRun(self, request: Any, context: Any) -> pb.ConsoleRunDetails:
        self.asked.append(request)
        self.belongings.owned(self.belongings.models, request.run_id, request.tenant_id, "run")
        points = [self.point(1), pb.CurvePoint(step=2, unix_ms=NOW_MS, grad_norm=0.25)]
        return pb.ConsoleRunDetails(run=self.run(request.run_id), points=points, stride=1, user_metadata_json='{"a":1}')

    async def GetState(self, request: Any, context: Any) -> pb.ConsoleState:
        self.asked.append(request)
        state = pb.ConsoleState(now_unix_ms=NOW_MS)
        samplers = [pb.ConsoleSamplers(role="both", count=2, in_flight=3)]
        state.pools.add(base_model=BASE_MODEL, trainers=1, slots_yours=1, slots_others=2, samplers=samplers)
        for run_id, (tenant, _) in self.belongings.models.items():
            if tenant == request.tenant_id:
                state.queues.add(run_id=run_id, depth=3, oldest_ms=1500)
                state.failures.add(unix_ms=NOW_MS, request_id="r", op="optim_step", parent=run_id, cause="why", times=2)
        return state
