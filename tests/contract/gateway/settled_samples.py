"""The doubled scheduler's completions: settled samples, numbered as they are first seen."""

from __future__ import annotations

from collections.abc import Mapping

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.ids import CompletionsWait
from tests.contract.gateway.submitted import Submitted

CLONE = 10**9


class SettledSamples:
    def __init__(self, requests: Mapping[str, Submitted]) -> None:
        self._requests = requests
        self._numbers: dict[str, int] = {}
        self.retrieved: list[str] = []

    def behind(self, session: str, clone: int, after: int) -> list[tuple[int, pb.Completion]]:
        for request_id, one in self._requests.items():
            if one.result is not None:
                self._numbers.setdefault(request_id, 10 * (len(self._numbers) + 1))
        return [
            (number, _completion(self._requests[request_id]))
            for request_id, number in self._numbers.items()
            if number > after and self._belongs(request_id, session, clone)
        ]

    def waits(self, wait: CompletionsWait) -> bool:
        return not self.behind(wait.sampling_session_id, wait.clone, wait.after)

    def reply(self, request: pb.ListCompletionsRequest) -> pb.ListCompletionsReply:
        self.retrieved.extend(request.retrieved_request_ids)
        found = self.behind(request.sampling_session_id, request.clone, request.after)[: request.limit or None]
        cursor = found[-1][0] if found else request.after
        return pb.ListCompletionsReply(completions=[one for _, one in found], cursor=cursor)

    def _belongs(self, request_id: str, session: str, clone: int) -> bool:
        key = self._requests[request_id].request.sample
        return (key.sampling_session_id, key.seq_id // CLONE) == (session, clone)


def _completion(one: Submitted) -> pb.Completion:
    assert one.result is not None
    failed = one.result.HasField("failure")
    size = 0 if failed else one.result.ByteSize()
    return pb.Completion(request_id=one.reply.request_id, failed=failed, result_bytes=size)
