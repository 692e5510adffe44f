"""A whole mesh of real processes with doubled engines, under the product's own supervisor.

    with MeshProcesses(tmp_path, gateways=2, schedulers=2) as mesh:
        mesh.base_url, mesh.api_key, mesh.kill("scheduler-0"), mesh.wait_ready("scheduler-0")

The supervisor runs in a thread of its own, so tests may drive the synchronous SDK. A killed
child is started again by the supervisor, as in local mode.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from services.common.cells import cell_suffix
from services.local.child import State
from services.local.mesh import LocalMesh
from services.local.plan import control_plane
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec, Readiness, Stage, StopRank
from services.local.state import keyring
from services.local.supervisor import ChildFailed
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.faults import write_rules
from tests.doubles.journal import read
from tests.doubles.valkey import free_port

T = TypeVar("T")
START_SECONDS = 240.0
CALL_SECONDS = 60.0


class DoubledMesh(LocalMesh):
    """LocalMesh with the doubles where trainer and sampler were, and more variables for all processes."""

    def __init__(
        self, settings: LocalSettings, variables: dict[str, str], trainer_options: Sequence[str], separate: list[str]
    ) -> None:
        self._variables = variables
        self._trainer_options = tuple(trainer_options)
        self._separate = separate
        super().__init__(settings)

    def specs(self) -> Sequence[ChildSpec]:
        control = [
            replace(spec, environment={**spec.environment, **self._variables})
            for spec in control_plane(self.settings, self.addresses)
        ]
        for number, address in enumerate(self._separate, start=1):
            place = next(n for n, spec in enumerate(control) if spec.name == f"gateway-{number}")
            control[place] = _listening_at(control[place], address)
        return [
            *control,
            *(self._trainer(number) for number in range(self.settings.trainers)),
            self._double("sampler", "sampler", self.addresses.sampler, StopRank.SAMPLER, ()),
        ]

    def _trainer(self, number: int) -> ChildSpec:
        options = (*self._trainer_options, "--cell", str(number))
        name = f"trainer{cell_suffix(str(number), '-')}"
        return self._double("trainer", name, self.addresses.trainers[number], StopRank.TRAINER, options)

    def _double(self, kind: str, name: str, address: str, rank: StopRank, options: tuple[str, ...]) -> ChildSpec:
        port_file = self.settings.run_dir / f"{name}.port"
        arguments = {
            "--listen": address,
            "--port-file": port_file,
            "--scheduler": ",".join(self.addresses.schedulers),
            "--store-root": self.settings.store,
            "--control": self.settings.state_dir / f"{name}.control",
            "--journal": self.settings.state_dir / f"{name}.journal",
        }
        flat = tuple(str(part) for pair in arguments.items() for part in pair)
        return ChildSpec(
            name=name,
            command=(sys.executable, "-m", f"tests.doubles.fake_{kind}", *flat, *options),
            address=address,
            stage=Stage.ENGINES,
            stop_rank=rank,
            readiness=Readiness.GRPC_HEALTH,
            log_file=self.settings.logs / f"{name}.log",
            port_file=port_file,
            environment={
                f"TINKERMESH_{kind.upper()}_METRICS_LISTEN": self.addresses.metrics.get(name, ""),
                **self._variables,
            },
        )


def _listening_at(gateway: ChildSpec, address: str) -> ChildSpec:
    variables = {k: v for k, v in gateway.environment.items() if not k.endswith("_LISTEN_FD")}
    return replace(
        gateway, address=address, inherit=(), environment={**variables, "TINKERMESH_GATEWAY_LISTEN": address}
    )


def free_ports_settings(directory: Path, model: Path, model_name: str, **options: Any) -> LocalSettings:
    ports: dict[str, Any] = dict.fromkeys(("port", "redis_port", "scheduler_port", "trainer_port", "sampler_port"), 0)
    return LocalSettings(model=model, model_name=model_name, state_dir=directory, **ports, **options)


class RunningMesh:
    """A LocalMesh in a thread of its own, for synchronous tests; made by `make` inside that thread."""

    def __init__(self, make: Callable[[], LocalMesh]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mesh", daemon=True)
        self._thread.start()
        self.mesh = self._call(self._make(make))
        self.settings = self.mesh.settings

    async def _make(self, make: Callable[[], LocalMesh]) -> LocalMesh:
        return make()

    def start(self) -> Self:
        """Raises AssertionError with the failed child's last lines."""
        try:
            self._call(self.mesh.start(), START_SECONDS)
        except ChildFailed as failure:
            lines = "\n".join(failure.child.last_lines(40))
            self.stop()
            raise AssertionError(f"{failure.message}\n{lines}") from failure
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        try:
            self._call(self.mesh.stop(), CALL_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    @property
    def base_url(self) -> str:
        return self.mesh.base_url

    @property
    def api_key(self) -> str:
        return self.mesh.api_key

    @property
    def environment(self) -> dict[str, str]:
        """What a client process needs."""
        return {**self.mesh.client_environment, "TINKER_TELEMETRY": "0", "NO_PROXY": "127.0.0.1,localhost"}

    @property
    def scheduler(self) -> str:
        return self.mesh.addresses.schedulers[0]

    def add_key(self, key: str) -> str:
        """Admits another tenant; answers its id."""
        return keyring(self.settings.key_file, self.settings.pepper_file).add(key)

    def names(self, prefix: str) -> list[str]:
        return [c.spec.name for c in self.mesh.supervisor.children if c.spec.name.startswith(prefix)]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """After SIGKILL the supervisor starts it again after a short pause."""
        self._call(self._kill(name, number))

    async def _kill(self, name: str, number: signal.Signals) -> None:
        self.mesh.supervisor.child(name).kill(number)

    def wait_restarted(self, name: str, restarts: int, seconds: float = 90.0) -> None:
        """Until `name` is ready again after its `restarts`-th restart."""
        self._call(self._wait_restarted(name, restarts), seconds)

    async def _wait_restarted(self, name: str, restarts: int) -> None:
        child = self.mesh.supervisor.child(name)
        while child.restarts < restarts or child.state is not State.READY:
            if self.mesh.supervisor.failure is not None:
                raise self.mesh.supervisor.failure
            await asyncio.sleep(0.05)

    def restarts(self, name: str) -> int:
        return self.mesh.supervisor.child(name).restarts

    def logs(self, name: str) -> str:
        return self.mesh.supervisor.child(name).spec.log_file.read_text()

    def _call(self, work: Coroutine[Any, Any, T], seconds: float = CALL_SECONDS) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class MeshProcesses(RunningMesh):
    """Real control plane, doubled engines.

    `separate_gateways`: every gateway on a port of its own (`gateway_urls`) instead of one shared
    socket. `variables` are added to the environment of all processes, `options` are further fields of LocalSettings.
    """

    def __init__(
        self,
        directory: Path,
        *,
        gateways: int = 1,
        schedulers: int = 1,
        variables: dict[str, str] | None = None,
        trainer_options: Sequence[str] = (),
        separate_gateways: bool = False,
        **options: Any,
    ) -> None:
        chosen = {"gateways": gateways, "schedulers": schedulers, **options}
        model = chosen.pop("model", Path("unused"))
        settings = free_ports_settings(directory, model, BASE_MODEL, **chosen)
        self._separate = [f"{settings.host}:{free_port()}" for _ in range(1, gateways) if separate_gateways]
        super().__init__(lambda: DoubledMesh(settings, variables or {}, trainer_options, self._separate))

    @property
    def gateway_urls(self) -> list[str]:
        return [self.base_url, *(f"http://{address}" for address in self._separate)]

    def inject(self, engine: str, rules: list[dict[str, object]]) -> None:
        """Replaces the faults of ``trainer`` or ``sampler``; see tests.doubles.faults."""
        write_rules(self.settings.state_dir / f"{engine}.control", rules)

    def journal(self, engine: str = "trainer") -> list[dict[str, Any]]:
        return read(self.settings.state_dir / f"{engine}.journal")


class RealMesh(LocalMesh):
    """LocalMesh with more variables for all processes."""

    def __init__(self, settings: LocalSettings, variables: dict[str, str]) -> None:
        self._variables = variables
        super().__init__(settings)

    def specs(self) -> Sequence[ChildSpec]:
        return [replace(spec, environment={**spec.environment, **self._variables}) for spec in super().specs()]


class RealMeshProcesses(RunningMesh):
    """Everything real: Megatron trainer and vLLM sampler on `model`, one compute thread each.

    `options` are further fields of LocalSettings.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        gateways: int = 1,
        schedulers: int = 1,
        variables: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        chosen = {"threads": 1, "max_rank": 16, **options}
        settings = free_ports_settings(directory, model, str(model), gateways=gateways, schedulers=schedulers, **chosen)
        super().__init__(lambda: RealMesh(settings, variables or {}))
