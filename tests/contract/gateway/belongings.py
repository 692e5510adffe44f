"""Whose session, model and sampling session is whose, in the doubled scheduler."""

from __future__ import annotations

import uuid
from typing import Any

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, UnknownId
from tests.contract.gateway.submitted import BASE_MODEL, facts


class Belongings:
    """Every table's key is an id; the owner is a tenant id."""

    def __init__(self) -> None:
        self.pools = [facts()]
        self.sessions: dict[str, str] = {}
        self.models: dict[str, tuple[str, pb.ModelInfo]] = {}
        self.samplers: dict[str, tuple[str, pb.GetSamplerReply]] = {}

    def add_session(self, tenant: str) -> str:
        session_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"session {len(self.sessions)}"))
        self.sessions[session_id] = tenant
        return session_id

    def add_model(self, tenant: str, session_id: str, number: int = 0, rank: int = 8) -> str:
        model_id = f"{session_id}:train:{number}"
        layout = types.AdapterLayout(rank=rank, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
        info = pb.ModelInfo(model_id=model_id, state="open", layout=layout, facts=self.pools[0])
        self.models[model_id] = (tenant, info)
        return model_id

    def add_sampler(self, tenant: str, session_id: str, number: int = 0, path: str = "") -> str:
        sampler_id = f"{session_id}:sample:{number}:double"
        reply = pb.GetSamplerReply(sampler_id=sampler_id, base_model=BASE_MODEL, model_path=path, facts=self.pools[0])
        self.samplers[sampler_id] = (tenant, reply)
        return sampler_id

    def owned(self, table: dict[str, Any], key: str, tenant: str, what: str) -> Any:
        if key not in table:
            raise UnknownId(f"{what} {key} does not exist")
        owner = table[key] if isinstance(table[key], str) else table[key][0]
        if owner != tenant:
            raise Forbidden(f"{what} {key} belongs to another account")
        return table[key]
