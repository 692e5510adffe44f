"""Ports that stay the same over restarts, and the socket that gateway replicas share."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.common.cells import cell_suffix
from services.common.errors import InvalidInput, Unavailable
from services.local.settings import LocalSettings

QUIET_PORTS = range(20_000, 32_000)
ATTEMPTS = 50
# Further schedulers listen on 7011, 7021, ..., further trainers on 7012, ..., the decode sampler on 7013.
REPLICA_STEP = 10
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
_given: set[int] = set()


@dataclass(frozen=True, slots=True)
class Addresses:
    """host:port of everything; `gateway` is the socket the supervisor listens on.

    Only the gateway asks for keys. The others believe whoever reaches them, so they stay on this machine.
    """

    gateway: socket.socket
    redis: str
    schedulers: tuple[str, ...]
    trainers: tuple[str, ...]
    samplers: tuple[str, ...]
    """In the order of LocalSettings.samplers; the first one's is kept where none runs."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Where each service is scraped, by the name of its process."""

    @property
    def base_url(self) -> str:
        """As clients on this machine reach the gateway."""
        host, port = self.gateway.getsockname()[:2]
        return f"http://{LOOPBACK if host == EVERYWHERE else host}:{port}"

    @property
    def sampler(self) -> str:
        return self.samplers[0]


def reserve(settings: LocalSettings) -> Addresses:
    """Raises InvalidInput naming every option whose port is taken."""
    _check_free(settings)
    return Addresses(
        gateway=listen(settings.host, settings.port),
        redis=_free(settings.redis_port, "--redis-port"),
        schedulers=tuple(_free(port, "--scheduler-port") for port in _scheduler_ports(settings)),
        trainers=tuple(_free(port, "--trainer-port") for port in _trainer_ports(settings)),
        samplers=tuple(_free(port, "--sampler-port") for port in _sampler_ports(settings)),
        metrics={name: f"{LOOPBACK}:{free_port()}" for name in _scraped(settings)} if settings.metrics else {},
    )


def _scraped(settings: LocalSettings) -> list[str]:
    numbered = [("gateway", settings.gateways), ("scheduler", settings.schedulers)]
    control = [f"{kind}-{number}" for kind, count in numbered for number in range(count)]
    trainers = [f"trainer{cell_suffix(str(number), '-')}" for number in range(settings.trainers)]
    return [*control, *trainers, *settings.samplers]


def _check_free(settings: LocalSettings) -> None:
    """All at once: whoever starts a second mesh should not meet its ports one by one."""
    wanted = [
        (settings.host, settings.port, "--port"),
        (LOOPBACK, settings.redis_port, "--redis-port"),
        *((LOOPBACK, port, "--scheduler-port") for port in _scheduler_ports(settings)),
        *((LOOPBACK, port, "--trainer-port") for port in _trainer_ports(settings)),
        *((LOOPBACK, port, "--sampler-port") for port in _sampler_ports(settings)),
    ]
    refused: dict[str, str] = {}
    for host, port, option in wanted:
        try:
            _bind(host, port, option).close()
        except InvalidInput as error:
            refused.setdefault(option, error.message)
    if refused:
        remedy = " ".join(f"{option} 0" for option in refused)
        raise InvalidInput(
            f"{'; '.join(refused.values())}. Choose other ports ({remedy} takes free ones); "
            "a mesh beside a running one needs a --state-dir of its own too"
        )


def _scheduler_ports(settings: LocalSettings) -> list[int]:
    return _ports(settings.scheduler_port, settings.schedulers)


def _trainer_ports(settings: LocalSettings) -> list[int]:
    return _ports(settings.trainer_port, settings.trainers)


def _sampler_ports(settings: LocalSettings) -> list[int]:
    return _ports(settings.sampler_port, max(1, len(settings.samplers)))


def _ports(first: int, count: int) -> list[int]:
    return [first + n * REPLICA_STEP if first else 0 for n in range(count)]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that children inherit."""
    listener = _bind(host, port, "--port")
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def free_port(host: str = LOOPBACK) -> int:
    """A port to listen on a little later, never the same twice in one process.

    It lies below the range from which systems number outgoing connections, so that none of
    those can take it in between.
    """
    for port in random.sample(QUIET_PORTS, ATTEMPTS):
        if port in _given:
            continue
        with contextlib.suppress(InvalidInput), _bind(host, port, "port"):
            _given.add(port)
            return port
    raise Unavailable(f"none of {ATTEMPTS} ports from {QUIET_PORTS.start} to {QUIET_PORTS.stop} is free on {host}")


def _free(port: int, option: str) -> str:
    if port == 0:
        return f"{LOOPBACK}:{free_port()}"
    _bind(LOOPBACK, port, option).close()
    return f"{LOOPBACK}:{port}"


def bindable(host: str, port: int) -> str:
    """Why nothing can listen there now; "" = something can."""
    try:
        _bind(host, port, "port").close()
    except InvalidInput as error:
        return error.message.rpartition(": ")[2]
    return ""


def _bind(host: str, port: int, option: str) -> socket.socket:
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((host, port))
    except (OSError, OverflowError) as error:
        probe.close()
        cause = error.strerror if isinstance(error, OSError) else "ports end at 65535"
        raise InvalidInput(f"{option}: {host}:{port} cannot be used: {cause}") from error
    return probe
