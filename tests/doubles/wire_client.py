"""A raw client of the Tinker wire for tests that must control every POST."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import zstandard
from tinkermesh.wire.v1 import wire_pb2 as wire

Json = dict[str, Any]
Body = Json | bytes  # bytes: protobuf
FUTURE_SECONDS = 60.0


class Zstd(bytes):
    """A protobuf body, compressed."""


class WireClient:
    """Posts to every given gateway in turn."""

    def __init__(self, urls: Sequence[str], api_key: str, *, timeout_seconds: float = 60.0) -> None:
        self.url, self.api_key = urls[0], api_key
        headers = {"x-api-key": api_key}
        self._clients = [
            httpx.AsyncClient(base_url=f"{u}/api/v1", headers=headers, timeout=timeout_seconds, trust_env=False)
            for u in urls
        ]

    async def post(self, path: str, body: Body, *, gateway: int = 0, **headers: str) -> httpx.Response:
        client = self._clients[gateway % len(self._clients)]
        if isinstance(body, bytes):
            headers["content-type"] = "application/x-protobuf"
            if isinstance(body, Zstd):
                headers["content-encoding"] = "zstd"
            return await client.post(path, content=body, headers=headers)
        return await client.post(path, json=body, headers=headers)

    async def get(self, path: str, *, gateway: int = 0) -> Json:
        answer = await self._clients[gateway % len(self._clients)].get(path)
        answer.raise_for_status()
        return dict(answer.json())

    async def post_many(self, path: str, bodies: Sequence[Body], **headers: str) -> list[httpx.Response]:
        """All at once, spread over the gateways; answers in order."""
        sends = [self.post(path, body, gateway=n, **headers) for n, body in enumerate(bodies)]
        return list(await asyncio.gather(*sends))

    async def future(self, request_id: str, *, protobuf: bool = False, seconds: float = FUTURE_SECONDS) -> Any:
        """The result of `request_id`: JSON, or the protobuf body's bytes."""
        accept = "application/x-protobuf" if protobuf else "application/json"
        async with asyncio.timeout(seconds):
            while True:
                answer = await self.post("/retrieve_future", {"request_id": request_id}, accept=accept)
                if answer.status_code == 408:
                    continue
                answer.raise_for_status()
                is_protobuf = "application/x-protobuf" in answer.headers["content-type"]
                return answer.content if is_protobuf else answer.json()

    async def session(self) -> str:
        body = {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}
        answer = await self.post("/create_session", body, **{"x-idempotency-key": str(uuid.uuid4())})
        answer.raise_for_status()
        return str(answer.json()["session_id"])

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


def batch(
    model_id: str, seq_id: int, seed: int, *, datums: int = 3, length: int = 6, forward_only: bool = False
) -> bytes:
    """A forward_backward body as the SDK sends it."""
    random = np.random.default_rng(seed)
    request = wire.ForwardBackwardRequest(
        model_id=model_id, seq_id=seq_id, loss_fn="cross_entropy", forward_only=forward_only
    )
    for _ in range(datums):
        tokens = random.integers(1, 512, length + 1)
        datum = request.data.add()
        datum.model_input.add().encoded_text.tokens = tokens[:-1].astype("<i4").tobytes()
        _tensor(datum, "target_tokens", tokens[1:].astype("<i8"), 2)
        _tensor(datum, "weights", np.ones(length, "<f4"), 1)
    return request.SerializeToString()


def _tensor(datum: wire.Datum, name: str, values: np.ndarray[Any, Any], dtype: int) -> None:
    tensor = datum.loss_fn_inputs[name]
    tensor.dense, tensor.dtype = values.tobytes(), dtype  # type: ignore[assignment]
    tensor.shape.append(len(values))


def batch_zstd(body: bytes) -> Zstd:
    """The same command compressed, as the SDK sends large ones."""
    return Zstd(zstandard.ZstdCompressor().compress(body))


def batch_json(body: bytes) -> Json:
    """The same command as JSON, which tells forward from forward_backward by its route alone."""
    request = wire.ForwardBackwardRequest.FromString(body)
    assert not request.forward_only
    data = [
        {
            "model_input": {
                "chunks": [
                    {
                        "type": "encoded_text",
                        "tokens": np.frombuffer(d.model_input[0].encoded_text.tokens, "<i4").tolist(),
                    }
                ]
            },
            "loss_fn_inputs": {name: _json_tensor(t) for name, t in d.loss_fn_inputs.items()},
        }
        for d in request.data
    ]
    content = {"data": data, "loss_fn": request.loss_fn}
    return {"model_id": request.model_id, "seq_id": request.seq_id, "forward_backward_input": content}


def _json_tensor(tensor: wire.Tensor) -> Json:
    name, kind = ("int64", "<i8") if tensor.dtype == 2 else ("float32", "<f4")
    return {"data": np.frombuffer(tensor.dense, kind).tolist(), "dtype": name, "shape": list(tensor.shape)}
