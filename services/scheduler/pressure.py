"""Which new work is refused while Redis is nearly full: what brings a payload, and can wait."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.ids import key_hash, parse_model_id, parse_sampling_session_id
from services.scheduler.ports import ModelDirectory
from services.scheduler.store.memory import MemoryGate


class Pressure:
    """Never refuses a create (its client would give up) nor what brings no payload."""

    def __init__(self, gate: MemoryGate, models: ModelDirectory) -> None:
        self._gate = gate
        self._models = models

    async def admit(self, request: pb.SubmitRequest) -> None:
        """Raises Busy before the key is claimed."""
        if not self._gate.closed:
            return
        kind = request.WhichOneof("key")
        if kind == "sample":
            sampling_session = request.sample.sampling_session_id
            key = key_hash("sample", sampling_session, request.sample.seq_id)
            await self._gate.admit_sample(parse_sampling_session_id(sampling_session).pool, key)
        elif kind == "model" and request.payload_bytes:
            model, seq = parse_model_id(request.model.model_id), str(request.model.seq_id)
            pool = await self._models.pool_of_model(model.session_id, model.model_seq_id)
            if pool is not None:
                await self._gate.admit_command(pool, key_hash("train", str(model), seq), str(model), seq)
