"""A mesh that is meant to be killed: every service runs under the launcher, none is ever given up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis

from services.local import supervisor
from services.local.mesh import LocalMesh
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec
from services.local.state import keyring
from tests.chaos import launcher, points
from tests.doubles.fake_trainer import BASE_MODEL, POOL
from tests.doubles.mesh import DoubledMesh, RealMesh, RunningMesh, free_ports_settings
from tests.doubles.valkey import free_port

KEEP_ROWS_MS = 30_000
TERM_LEASE_SECONDS = 2.0
VARIABLES = {
    "TINKERMESH_SCHEDULER_TERM_LEASE_SECONDS": str(TERM_LEASE_SECONDS),
    "TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "2",
    # Kills at random hit a command again and again: none of them is poison for that.
    "TINKERMESH_SCHEDULER_POISON_DEATHS": "1000",
    "TINKERMESH_SCHEDULER_DURABLE_EVERY_STEPS": "3",
    launcher.KEEP_ROWS: str(KEEP_ROWS_MS),
}
TENANTS = 8


class LaunchedMesh(DoubledMesh):
    """DoubledMesh whose services have points."""

    def specs(self) -> Sequence[ChildSpec]:
        return [launched(spec, self.settings.state_dir / "chaos") for spec in super().specs()]


def launched(spec: ChildSpec, directory: Path) -> ChildSpec:
    """The same service under the launcher; what is not ours (Redis) stays as it is."""
    interpreter, flag, *rest = spec.command
    if interpreter != sys.executable or flag != "-m":
        return spec
    own = {launcher.DIRECTORY: str(directory), launcher.PROCESS: spec.name}
    command = (interpreter, "-m", "tests.chaos.launcher", *rest)
    return replace(spec, command=command, environment={**spec.environment, **own})


PATIENCE = (supervisor.GIVE_UP_ENDS, supervisor.BACKOFF_SECONDS)
ENDLESS = (1 << 30, (0.05,))
"""The product's supervisor ends a mesh whose child ends again and again; here that is the point."""


def be_patient(ends: int, backoff: tuple[float, ...]) -> None:
    """Of every supervisor of this process, until the mesh stops: other tests' must give up again."""
    supervisor.GIVE_UP_ENDS, supervisor.BACKOFF_SECONDS = ends, backoff


class Killable(RunningMesh):
    """What every mesh of this harness can: tenants, arms, signals."""

    def __init__(self, settings: LocalSettings, make: Callable[[], LocalMesh]) -> None:
        be_patient(*ENDLESS)
        self.arms = settings.state_dir / "chaos"
        self.arms.mkdir(parents=True)
        super().__init__(make)
        self.keys = [self._tenant(number) for number in range(TENANTS)]

    def _tenant(self, number: int) -> str:
        key = f"tml-chaos-{number}"
        keyring(self.settings.key_file, self.settings.pepper_file).add(key)
        return key

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            be_patient(*PATIENCE)

    @property
    def gateway_urls(self) -> list[str]:
        return [self.base_url]

    @property
    def redis(self) -> Redis:
        host, port = self.mesh.addresses.redis.rsplit(":", 1)
        return Redis(host=host, port=int(port), socket_timeout=10)

    def pid(self, name: str) -> int:
        """0 while it is not running."""
        return self.mesh.supervisor.child(name).pid or 0

    def victim(self, name: str) -> dict[str, Any] | None:
        """How an arm names a process other than its own."""
        pid = self.pid(name)
        return {"pid": pid, "start": points.started(pid)} if pid else None

    def strike(self, name: str, number: signal.Signals) -> bool:
        """False when it was not running."""
        pid = self.pid(name)
        if pid:
            points.strike(pid, number)
        return bool(pid)

    def disarm(self) -> None:
        for name in self.names(""):
            points.arm(self.arms, name, [])


class ChaosMesh(Killable):
    """Two gateways (one on the shared socket, one on a port of its own), two schedulers, one double of each engine."""

    def __init__(
        self, directory: Path, *, variables: dict[str, str] | None = None, trainer_options: Sequence[str] = ()
    ) -> None:
        settings = free_ports_settings(directory, Path("unused"), BASE_MODEL, gateways=2, schedulers=2)
        self._separate = [f"{settings.host}:{free_port()}"]
        chosen = {**VARIABLES, **(variables or {})}
        super().__init__(settings, lambda: LaunchedMesh(settings, chosen, trainer_options, self._separate))

    @property
    def gateway_urls(self) -> list[str]:
        return [self.base_url, *(f"http://{address}" for address in self._separate)]


class LaunchedRealMesh(RealMesh):
    """RealMesh whose services have points."""

    def specs(self) -> Sequence[ChildSpec]:
        return [launched(spec, self.settings.state_dir / "chaos") for spec in super().specs()]


class RealChaosMesh(Killable):
    """The real trainer on `model`, in a pool of the double's name; no sampler."""

    def __init__(self, directory: Path, model: Path) -> None:
        chosen = {"threads": 1, "max_rank": 16, "slots": 4, "sampler": False, "schedulers": 2}
        settings = free_ports_settings(directory, model, BASE_MODEL, **chosen)
        variables = {**VARIABLES, "TINKERMESH_TRAINER_POOL": POOL}
        super().__init__(settings, lambda: LaunchedRealMesh(settings, variables))
