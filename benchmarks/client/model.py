"""One model of one session: what a researcher's client keeps between requests."""

from __future__ import annotations

from dataclasses import dataclass

from tinkermesh.wire.v1 import wire_pb2 as wire

from benchmarks.client.connection import Answer
from benchmarks.client.gateway import PROTOBUF, Gateway, Refused, decode, encode

ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}


@dataclass
class Model:
    gateway: Gateway
    session_id: str
    model_id: str
    batch: list[wire.Datum]
    next_seq: int = 1

    def take_seq(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    async def post_forward_backward(self, seq: int | None = None) -> str:
        request = wire.ForwardBackwardRequest(
            model_id=self.model_id, seq_id=seq or self.take_seq(), data=self.batch, loss_fn="cross_entropy"
        )
        return await self.gateway.submit("forward_backward", request.SerializeToString(), PROTOBUF)

    async def post_optim_step(self) -> str:
        body = {"model_id": self.model_id, "seq_id": self.take_seq(), "adam_params": ADAM, "type": "optim_step"}
        return await self.gateway.submit("optim_step", encode(body))

    async def forward_backward(self) -> Answer:
        return await self.gateway.result(await self.post_forward_backward())

    async def optim_step(self) -> Answer:
        return await self.gateway.result(await self.post_optim_step())

    async def step(self) -> None:
        """forward_backward and optim_step, submitted together as the SDK does."""
        first = await self.post_forward_backward()
        second = await self.post_optim_step()
        await self.gateway.result(first)
        await self.gateway.result(second)

    async def save(self, name: str) -> str:
        """The path of a checkpoint with moments. Raises Refused."""
        body = {"model_id": self.model_id, "seq_id": self.take_seq(), "path": name, "type": "save_weights"}
        answer = await self.gateway.result(await self.gateway.submit("save_weights", encode(body)))
        path: str = decode(answer.body)["path"]
        return path

    async def heartbeat(self) -> None:
        await self.gateway.call("session_heartbeat", {"session_id": self.session_id, "type": "session_heartbeat"})

    async def finish(self) -> None:
        """The session ends, its model closes and the slot is freed soon after."""
        body = encode({"reason": {"type": "success"}, "detail": None})
        await self.gateway.post(f"sessions/{self.session_id}/finish", body)


async def open_model(gateway: Gateway, base_model: str, batch: list[wire.Datum], rank: int = 8) -> Model:
    """A new session with one new model. Raises Refused."""
    made = await gateway.call("create_session", {"tags": [], "sdk_version": "0.38.0", "type": "create_session"})
    session_id: str = made["session_id"]
    body = {
        "session_id": session_id,
        "model_seq_id": 0,
        "base_model": base_model,
        "lora_config": {"rank": rank, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True},
        "type": "create_model",
    }
    created = await gateway.result(await gateway.submit("create_model", encode(body)))
    if "model_id" not in (answer := decode(created.body)):
        raise Refused(f"create_model: {answer}")
    return Model(gateway, session_id, answer["model_id"], batch)
