"""What `helm test` runs: one training step of one pool through the gateway, and one sample, with a key of its own.

Needs the gateway's image only: HTTP by the standard library, the key by the scheduler's Tenants service.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import grpc
from tinkermesh.v1 import admin_pb2, admin_pb2_grpc, tenants_pb2, tenants_pb2_grpc

from services.common.grpc_channel import blocking_channel

GATEWAY = os.environ["GATEWAY"]
POOL = os.environ["POOL"]
DEADLINE = time.monotonic() + float(os.environ.get("TIMEOUT_SECONDS", "300"))
ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]


class Mesh:
    """The gateway, with a key."""

    def __init__(self, key: str) -> None:
        self._key = key

    def request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer; waits while the mesh is not ready, until the deadline."""
        while True:
            status, answer = self._once(path, body)
            if status in (200, 204):
                return answer
            if status not in (0, 408, 429, 502, 503, 504) or time.monotonic() > DEADLINE:
                raise SystemExit(f"{path}: HTTP {status} {answer}")
            time.sleep(0.0 if status == 408 else 1.0)

    def result(self, path: str, body: dict[str, Any]) -> Any:
        """What became of a command."""
        request_id = self.request(path, body)["request_id"]
        answer = self.request("retrieve_future", {"request_id": request_id})
        if "error" in answer:
            raise SystemExit(f"{path}: {answer}")
        return answer

    def _once(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": self._key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{GATEWAY}/api/v1/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read()[:500]
        except OSError as error:
            return 0, str(error)


def base_model(channel: grpc.Channel) -> str:
    """The name of the pool's model, once its trainer has registered."""
    admin: Any = admin_pb2_grpc.AdminStub(channel)
    while True:
        left = max(1.0, DEADLINE - time.monotonic())
        pools = admin.ListPools(admin_pb2.AdminListPoolsRequest(), timeout=left, wait_for_ready=True).pools
        found = [pool.facts.base_model for pool in pools if pool.facts.pool == POOL]
        if found:
            return str(found[0])
        if time.monotonic() > DEADLINE:
            raise SystemExit(f"pool {POOL} has not registered; the mesh knows {[pool.facts.pool for pool in pools]}")
        time.sleep(1.0)


def train(mesh: Mesh, model: str) -> tuple[str, str]:
    """Session and snapshot."""
    session = mesh.request("create_session", {"tags": ["helm-test"], "sdk_version": "0.38.0"})["session_id"]
    # Not the MLP: a mixture's experts are not trained where samplers serve the result.
    lora = {"rank": 1, "seed": 1, "train_unembed": True, "train_mlp": False, "train_attn": True}
    create = {"session_id": session, "model_seq_id": 0, "base_model": model, "lora_config": lora}
    model_id = mesh.result("create_model", create)["model_id"]
    targets = {"data": TOKENS[1:], "dtype": "int64", "shape": [len(TOKENS) - 1]}
    weights = {"data": [1.0] * (len(TOKENS) - 1), "dtype": "float32", "shape": [len(TOKENS) - 1]}
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:-1]}]},
        "loss_fn_inputs": {"target_tokens": targets, "weights": weights},
    }
    passed = mesh.result(
        "forward_backward",
        {"model_id": model_id, "seq_id": 1, "forward_backward_input": {"data": [datum], "loss_fn": "cross_entropy"}},
    )
    print(f"loss {passed['metrics']['loss:sum']:.4f} of {len(TOKENS) - 1} tokens")
    mesh.result("optim_step", {"model_id": model_id, "seq_id": 2, "adam_params": ADAM})
    save = {"model_id": model_id, "seq_id": 3, "path": "helm-test", "kind": "snapshot", "ttl_seconds": 3600}
    saved = mesh.result("save_weights_for_sampler", save)
    print(f"saved {saved['path']}")
    return session, saved["path"]


def sample(mesh: Mesh, session: str, snapshot: str) -> None:
    body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": snapshot}
    sampling_session = mesh.request("create_sampling_session", body)["sampling_session_id"]
    body = {
        "sampling_session_id": sampling_session,
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:3]}]},
        "num_samples": 1,
        "sampling_params": {"max_tokens": 4, "temperature": 1.0, "seed": 1},
    }
    print(f"sampled {mesh.result('asample', body)['sequences'][0]['tokens']}")


def main() -> int:
    with blocking_channel(os.environ["SCHEDULER"]) as channel:
        tenants: Any = tenants_pb2_grpc.TenantsStub(channel)
        model = base_model(channel)
        key = tenants.CreateKey(tenants_pb2.CreateKeyRequest(label="helm test", expires_seconds=3600), timeout=30)
        try:
            mesh = Mesh(key.secret)
            session, snapshot = train(mesh, model)
            if os.environ.get("SAMPLES") == "true":
                sample(mesh, session, snapshot)
            mesh.request(f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
        finally:
            tenants.RevokeKey(tenants_pb2.RevokeKeyRequest(key_id=key.key.key_id), timeout=30)
    print(f"{model} trains" + (" and samples" if os.environ.get("SAMPLES") == "true" else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
