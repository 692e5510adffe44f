"""No API key is kept anywhere: not in Redis, on disk, in a log or in a process's environment (SEC-02, SEC-04)."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from redis import Redis

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh import main_path

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]


def new_key() -> str:
    return f"tml-SECRET-{secrets.token_hex(16)}"


class Session:
    """What two tenants with secret keys do, each in the other's sight; `model` is proof that it left traces."""

    def __init__(self, mesh: MeshProcesses) -> None:
        self.mesh = mesh
        self.keys = {"own": new_key(), "friend": new_key(), "unknown": new_key(), "bearer": new_key()}
        for name in ("own", "friend", "bearer"):
            mesh.add_key(self.keys[name])
        self.model = ""

    async def run(self) -> None:
        friend = WireClient([self.mesh.base_url], self.keys["friend"])
        own = WireClient([self.mesh.base_url], self.keys["own"])
        shared = await self._saved(friend)
        await self._train(own, shared)
        await self._misuse(own)
        await friend.close()
        await own.close()

    async def _saved(self, client: WireClient) -> str:
        """A checkpoint of the friend's."""
        model = await main_path.created(client, await client.session())
        return await main_path.saved(client, model, 1, "shared")

    async def _train(self, client: WireClient, shared: str) -> None:
        session = await client.session()
        self.model = model = await main_path.created(client, session)
        await main_path.done(client, "/forward_backward", batch(model, 1, seed=1))
        await main_path.done(client, "/optim_step", main_path.adam(model, 2))
        load = {"model_id": model, "path": shared, "optimizer": False}
        tokens = (self.keys[name] for name in ("friend", "unknown"))
        granted, denied = [{**load, "seq_id": n, "weights_access_token": token} for n, token in enumerate(tokens, 3)]
        await main_path.done(client, "/load_weights", granted)
        assert "error" in await main_path.outcome(client, "/load_weights", denied)
        saved = await main_path.saved(client, model, 5, "s", "save_weights_for_sampler")
        sampler = await main_path.snapshot_sampler(client, session, saved)
        made = await main_path.accepted(client, "/asample", main_path.sample(sampler, 1))
        await client.future(made["request_id"], protobuf=True)

    async def _misuse(self, client: WireClient) -> None:
        """Keys where they do not belong, and keys nobody knows."""
        event = {"events": [{"api_key": self.keys["own"]}], "session_id": "x", "platform": "p", "sdk_version": "0"}
        await client.post("/telemetry", event)
        await client.post("/retrieve_future", {"request_id": self.keys["own"]})
        await client.post("/optim_step", {"model_id": self.keys["own"], "seq_id": 1})
        await client.post("/optim_step", f"\x0a{self.keys['own']}".encode())
        await client.post(
            "/load_weights", {"model_id": self.model, "seq_id": 6, "weights_access_token": [self.keys["own"]]}
        )
        stranger = WireClient([self.mesh.base_url], self.keys["unknown"])
        for path in ("/create_session", "/optim_step", "/retrieve_future"):
            answer = await stranger.post(path, {})
            assert answer.status_code == 401
            assert self.keys["unknown"] not in answer.text
        await stranger.close()
        by_token = {"authorization": f"Bearer {self.keys['bearer']}", "x-api-key": ""}
        body = {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"}
        made = await client.post("/create_session", body, **by_token, **{"x-idempotency-key": str(uuid.uuid4())})
        assert made.status_code == 200, made.text


@pytest.fixture(scope="module")
def session(plain_mesh: MeshProcesses) -> Session:
    made = Session(plain_mesh)
    asyncio.run(made.run())
    service = tinker.ServiceClient(base_url=plain_mesh.base_url, api_key=made.keys["own"])
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8).result()
    training.save_state("by-the-sdk").result(60)
    return made


def holders(text: dict[str, bytes], keys: dict[str, str]) -> list[str]:
    """Where any part of a key's secret is found."""
    return [f"{place}: {name}" for place, data in text.items() for name, key in keys.items() if secret(key) in data]


def secret(key: str) -> bytes:
    return key.removeprefix("tml-").encode()


def redis_content(address: str) -> dict[str, bytes]:
    """Every key of Redis with its whole value."""
    host, port = address.rsplit(":", 1)
    with Redis(host=host, port=int(port)) as redis:
        return {key.decode(): key + repr(_value(redis, key)).encode() for key in redis.scan_iter(count=500)}


def _value(redis: Any, key: bytes) -> Any:
    match redis.type(key):
        case b"string":
            return redis.get(key)
        case b"hash":
            return redis.hgetall(key)
        case b"set":
            return redis.smembers(key)
        case b"zset":
            return redis.zrange(key, 0, -1, withscores=True)
        case b"list":
            return redis.lrange(key, 0, -1)
        case b"stream":
            return redis.xrange(key)
        case kind:
            raise AssertionError(f"{key!r} is a {kind!r}, which this look does not know")


def files(root: Path) -> Iterator[tuple[str, bytes]]:
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            yield str(file.relative_to(root)), file.read_bytes()


def test_no_key_in_redis_SEC_02(session: Session, plain_mesh: MeshProcesses) -> None:
    content = redis_content(plain_mesh.mesh.addresses.redis)
    assert any(session.model.encode() in value for value in content.values())
    assert holders(content, session.keys) == []


def test_no_key_in_any_file_SEC_02(session: Session, plain_mesh: MeshProcesses) -> None:
    """The append-only file, store, logs, key file, port files: everything under the state directory."""
    content = dict(files(plain_mesh.settings.state_dir))
    for place in ("logs/gateway-0.log", "logs/scheduler-0.log", "keys.json"):
        assert place in content
    assert any(name.startswith("redis/") and session.model.encode() in data for name, data in content.items())
    assert session.model.encode() in content["logs/gateway-0.log"]
    assert any(name.startswith("store/") for name in content)
    assert holders(content, session.keys) == []


def test_no_key_in_any_process_SEC_02(session: Session, plain_mesh: MeshProcesses) -> None:
    """Neither in arguments nor in the environment, which other users of a machine may read."""
    content: dict[str, bytes] = {}
    for child in plain_mesh.mesh.supervisor.children:
        for name in ("cmdline", "environ"):
            content[f"{child.spec.name} {name}"] = Path(f"/proc/{child.pid}/{name}").read_bytes()
    assert all(content[f"{child.spec.name} cmdline"] for child in plain_mesh.mesh.supervisor.children)
    assert holders(content, session.keys) == []


def test_a_key_in_a_file_would_be_found(session: Session, tmp_path: Path) -> None:
    """Negative control of the search."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log").write_text(f"x{session.keys['own']}y")
    assert holders(dict(files(tmp_path)), session.keys) == ["deep/log: own"]
