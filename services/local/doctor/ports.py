"""Whether the next `tinkermesh up` finds its ports free and has a Redis server to start."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from services.common.errors import TinkermeshError
from services.common.findings import Finding, error, ok
from services.local.addresses import LOOPBACK, bindable
from services.local.endpoints import Endpoints
from services.local.valkey_process import server_binary

DEFAULTS = (
    ("--port", LOOPBACK, 8000),
    ("--redis-port", LOOPBACK, 7000),
    ("--scheduler-port", LOOPBACK, 7001),
    ("--trainer-port", LOOPBACK, 7002),
    ("--sampler-port", LOOPBACK, 7003),
)


def ports(last: Endpoints | None) -> Iterator[Finding]:
    """Those of the mesh that ran here last, else the defaults."""
    wanted = DEFAULTS if last is None else tuple(_used(last))
    taken = {(option, port): cause for option, host, port in wanted if (cause := bindable(host, port))}
    for (option, port), cause in taken.items():
        remedy = f"stop the program that has it (ss -ltnp 'sport = :{port}'), or start with {option} 0"
        yield error("ports", f"{option} {port} cannot be used: {cause}", remedy)
    if not taken:
        yield ok("ports", f"{', '.join(str(port) for _, _, port in wanted)} are free")


def _used(last: Endpoints) -> Iterator[tuple[str, str, int]]:
    gateway = urlsplit(last.base_url)
    yield "--port", gateway.hostname or LOOPBACK, gateway.port or 0
    named: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("--redis-port", (last.redis,)),
        ("--scheduler-port", last.schedulers),
        ("--trainer-port", last.trainers),
        ("--sampler-port", last.samplers),
    )
    for option, addresses in named:
        for address in addresses:
            host, _, port = address.rpartition(":")
            yield option, host, int(port)


def redis_server() -> Finding:
    try:
        return ok("redis server", str(server_binary()))
    except TinkermeshError as wrong:
        return error("redis server", wrong.message, "install tinkermesh[local], or a valkey-server 7.2 or newer")
