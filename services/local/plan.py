"""Settings and addresses in, child processes out: pure, no side effect.

The services' settings are known here by their environment variables only: those are the
contract, so that local mode imports no other service.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from services.common.cells import cell_suffix
from services.local.addresses import Addresses
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec, Readiness, Stage, StopRank
from services.local.valkey_process import server_command

ENGINE_READY_SECONDS = 300.0
TRAINER_STOP_SECONDS = 75.0  # more than its own limit (60 s) for publishing the saves it has captured


def plan(settings: LocalSettings, addresses: Addresses) -> list[ChildSpec]:
    trainers = [trainer(settings, addresses, n) for n in range(settings.trainers)]
    samplers = [sampler(settings, addresses, n) for n in range(len(settings.samplers))]
    return [*control_plane(settings, addresses), *trainers, *samplers]


def control_plane(settings: LocalSettings, addresses: Addresses) -> list[ChildSpec]:
    """Everything but trainers and samplers."""
    return [
        valkey(settings, addresses),
        *(scheduler(settings, addresses, n) for n in range(settings.schedulers)),
        *(gateway(settings, addresses, n) for n in range(settings.gateways)),
    ]


def valkey(settings: LocalSettings, addresses: Addresses) -> ChildSpec:
    host, port = addresses.redis.rsplit(":", 1)
    return ChildSpec(
        name="redis",
        command=server_command(
            host, int(port), settings.state_dir / "redis", settings.durability, settings.redis_memory
        ),
        address=addresses.redis,
        stage=Stage.STATE,
        stop_rank=StopRank.REDIS,
        readiness=Readiness.REDIS_PING,
        log_file=settings.logs / "redis.log",
    )


def scheduler(settings: LocalSettings, addresses: Addresses, number: int) -> ChildSpec:
    name = f"scheduler-{number}"
    return ChildSpec(
        name=name,
        command=_service("scheduler"),
        address=addresses.schedulers[number],
        stage=Stage.CONTROL,
        stop_rank=StopRank.SCHEDULER,
        readiness=Readiness.GRPC_HEALTH,
        log_file=_log(settings, name),
        port_file=_port_file(settings, name),
        environment=_variables(
            "scheduler",
            listen=addresses.schedulers[number],
            replica=name,
            redis_url=f"redis://{addresses.redis}/0",
            durability=settings.durability,
            store_root=settings.store,
            key_file=settings.key_file,
            pepper_file=settings.pepper_file,
            port_file=_port_file(settings, name),
            samplers=settings.sampler,
            metrics_listen=addresses.metrics.get(name, ""),
        ),
    )


def gateway(settings: LocalSettings, addresses: Addresses, number: int) -> ChildSpec:
    name = f"gateway-{number}"
    descriptor = addresses.gateway.fileno()
    return ChildSpec(
        name=name,
        command=_service("gateway"),
        address=addresses.base_url.removeprefix("http://"),
        stage=Stage.ENGINES,
        stop_rank=StopRank.GATEWAY,
        readiness=Readiness.PORT_FILE,
        log_file=_log(settings, name),
        port_file=_port_file(settings, name),
        inherit=(descriptor,),
        environment=_variables(
            "gateway",
            listen_fd=descriptor,
            scheduler=",".join(addresses.schedulers),
            key_file=settings.key_file,
            pepper_file=settings.pepper_file,
            port_file=_port_file(settings, name),
            metrics_listen=addresses.metrics.get(name, ""),
        ),
    )


def trainer(settings: LocalSettings, addresses: Addresses, number: int) -> ChildSpec:
    own = {"listen": addresses.trainers[number], "slots": settings.slots, "cell": str(number)}
    name = f"trainer{cell_suffix(str(number), '-')}"
    return _engine(settings, addresses, "trainer", name, StopRank.TRAINER, own, stop_seconds=TRAINER_STOP_SECONDS)


def sampler(settings: LocalSettings, addresses: Addresses, number: int) -> ChildSpec:
    name = settings.samplers[number]
    own = {"listen": addresses.samplers[number], **(_leg(settings, addresses, name) if settings.prefill_decode else {})}
    return _engine(settings, addresses, "sampler", name, StopRank.SAMPLER, own, stop_seconds=30.0)


def _leg(settings: LocalSettings, addresses: Addresses, name: str) -> dict[str, object]:
    """The seed is the same at every start on a state directory, so that the blocks of the last run are found."""
    return {
        "role": name.removeprefix("sampler-"),
        "kv_directory": settings.kv_directory,
        "kv_hash_seed": crc32(str(settings.state_dir).encode()),
        "redis_url": f"redis://{addresses.redis}/0",
    }


def _engine(
    settings: LocalSettings,
    addresses: Addresses,
    service: str,
    name: str,
    stop_rank: StopRank,
    own: Mapping[str, object],
    *,
    stop_seconds: float,
) -> ChildSpec:
    """A trainer or sampler; `own` are the settings it does not share with the other."""
    places = {"port_file": _port_file(settings, name), "metrics_listen": addresses.metrics.get(name, "")}
    variables = _variables(service, **_pool(settings, addresses), **own, **places)
    return ChildSpec(
        name=name,
        command=_service(service),
        address=str(own["listen"]),
        stage=Stage.ENGINES,
        stop_rank=stop_rank,
        readiness=Readiness.GRPC_HEALTH,
        log_file=_log(settings, name),
        port_file=_port_file(settings, name),
        environment=variables | _threads(settings.threads),
        ready_seconds=ENGINE_READY_SECONDS,
        stop_seconds=stop_seconds,
    )


def _pool(settings: LocalSettings, addresses: Addresses) -> dict[str, object]:
    """What trainer and sampler must agree on."""
    return {
        "model_path": settings.model,
        "base_model": settings.model_name,
        "aliases": ",".join(_aliases(settings)),
        "store_root": settings.store,
        "schedulers": ",".join(addresses.schedulers),
        "max_context": settings.max_context,
        "max_rank": settings.max_rank,
        "threads": settings.threads,
    }


def _aliases(settings: LocalSettings) -> list[str]:
    """The model's directory always names it, too."""
    return [name for name in (str(settings.model), *settings.aliases) if name != settings.model_name]


def _service(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"services.{name}")


def _variables(service: str, **values: object) -> dict[str, str]:
    return {f"TINKERMESH_{service.upper()}_{name.upper()}": str(value) for name, value in values.items()}


def _threads(count: int) -> dict[str, str]:
    """Waiting compute threads soon sleep: spinning ones would take the cores from the other engine.

    Without any spinning an idle machine pays a wake-up per operation: 1.6 times the time of a small pass.
    """
    return {
        "OMP_NUM_THREADS": str(count),
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "1000",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _log(settings: LocalSettings, name: str) -> Path:
    return settings.logs / f"{name}.log"


def _port_file(settings: LocalSettings, name: str) -> Path:
    return settings.run_dir / f"{name}.port"
