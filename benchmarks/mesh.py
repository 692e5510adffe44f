"""The meshes that are measured: real processes under the product's own supervisor, ports of their own."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from redis import Redis
from tinkermesh.v1 import admin_pb2 as pb

from services.local.mesh import LocalMesh
from services.local.settings import LocalSettings
from services.local.state import keyring
from services.scheduler.store import keys
from tests.doubles.admin import models, recovery
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.faults import write_rules
from tests.doubles.mesh import DoubledMesh

T = TypeVar("T")
CALL_SECONDS = 60.0
START_SECONDS = 400.0
PORTS = ("port", "redis_port", "scheduler_port", "trainer_port", "sampler_port")
DOUBLE = {"base_model": BASE_MODEL, "vocabulary": 512}  # arguments of the client's `open`
PROCESSES = ("gateway-0", "scheduler-0", "redis")


class RunningMesh:
    """A mesh whose supervisor has a thread of its own."""

    def __init__(self, settings: LocalSettings, make: Callable[[LocalSettings], LocalMesh]) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)
        self._thread.start()
        self.mesh = self._call(_made(settings, make))

    def start(self) -> None:
        self._call(self.mesh.start(), START_SECONDS)

    def stop(self) -> None:
        try:
            self._call(self.mesh.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    @property
    def base_url(self) -> str:
        return self.mesh.base_url

    def keys(self, count: int) -> list[str]:
        """API keys of `count` tenants, the default one first."""
        ring = keyring(self.settings.key_file, self.settings.pepper_file)
        further = [f"tml-benchmark-{n}" for n in range(1, count)]
        for key in further:
            ring.add(key)
        return [self.mesh.api_key, *further]

    def pids(self, names: Sequence[str] = PROCESSES) -> dict[str, int]:
        return {name: pid for name in names if (pid := self.mesh.supervisor.child(name).pid) is not None}

    @property
    def redis_url(self) -> str:
        return f"redis://{self.mesh.addresses.redis}/0"

    def fsync(self, policy: str) -> None:
        """`always` is durability strict; `everysec` loses up to a second on a power failure."""
        with Redis.from_url(self.redis_url) as redis:
            redis.config_set("appendfsync", policy)

    def durability(self, mode: str) -> None:
        """strict, everysec or off, as TINKERMESH_SCHEDULER_DURABILITY says it (docs/recovery.md)."""
        with Redis.from_url(self.redis_url) as redis:
            redis.config_set("appendonly", "no" if mode == "off" else "yes")
            redis.config_set("appendfsync", "always" if mode == "strict" else "everysec")
            deadline = time.monotonic() + CALL_SECONDS
            while redis.info("persistence")["aof_rewrite_in_progress"]:
                if time.monotonic() > deadline:
                    raise TimeoutError("Redis does not finish writing its new append-only file")
                time.sleep(0.02)

    def durable_every(self, steps: int) -> None:
        """From now on durable points are due every `steps` optimizer steps (the setting DURABLE_EVERY_STEPS)."""
        with Redis.from_url(self.redis_url, decode_responses=True) as redis:
            redis.hset(keys.cell(self.pool), "durable_steps", str(steps))

    @property
    def pool(self) -> str:
        with Redis.from_url(self.redis_url, decode_responses=True) as redis:
            (name,) = redis.smembers(keys.POOLS)
        return str(name)

    def recovery(self) -> pb.Recovery:
        """What recovery, durable points and paging have done so far."""
        return recovery(self.mesh.addresses.schedulers[0], self.pool)

    def models(self) -> list[pb.ModelReport]:
        return models(self.mesh.addresses.schedulers[0])

    def kill(self, name: str) -> None:
        """SIGKILL; the supervisor starts it again."""

        async def kill() -> None:
            self.mesh.supervisor.child(name).kill(signal.SIGKILL)

        self._call(kill())

    def log_fields(self, name: str) -> list[dict[str, Any]]:
        """Every line a service has logged so far."""
        lines = self.mesh.supervisor.child(name).spec.log_file.read_text().splitlines()
        return [msgspec.json.decode(line) for line in lines if line.startswith("{")]

    def delay_trainer(self, seconds: float) -> None:
        """Every unit of the trainer double takes that much longer."""
        rule: dict[str, object] = {"action": "delay_before", "times": 0, "seconds": seconds}
        write_rules(self.settings.state_dir / "trainer.control", [rule] if seconds else [])

    def _call(self, work: Coroutine[Any, Any, T], seconds: float = CALL_SECONDS) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise


async def _made(settings: LocalSettings, make: Callable[[LocalSettings], LocalMesh]) -> LocalMesh:
    return make(settings)


@contextmanager
def running(make: Callable[[LocalSettings], LocalMesh], **options: Any) -> Iterator[RunningMesh]:
    with tempfile.TemporaryDirectory(prefix="tinkermesh-bench-") as directory:
        options |= dict.fromkeys(PORTS, 0)  # any free one
        mesh = RunningMesh(LocalSettings(state_dir=Path(directory), **options), make)
        try:
            mesh.start()
            yield mesh
        finally:
            mesh.stop()


@contextmanager
def doubled(slots: int) -> Iterator[RunningMesh]:
    """Gateway, scheduler and Valkey as they are; trainer and sampler compute nothing to speak of."""

    def make(settings: LocalSettings) -> LocalMesh:
        return DoubledMesh(settings, {}, ("--slots", str(slots)), separate=[])

    with running(make, model=Path("unused"), model_name=BASE_MODEL) as mesh:
        yield mesh


@contextmanager
def real(model: Path, model_name: str, *, sampler: bool, **options: Any) -> Iterator[RunningMesh]:
    """The real trainer, and the real sampler if wanted, behind the same control plane.

    `options`: further fields of LocalSettings.
    """
    with running(LocalMesh, model=model, model_name=model_name, sampler=sampler, **options) as mesh:
        yield mesh
