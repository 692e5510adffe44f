"""The podman commands the tests use; every call is bounded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.podman.play import PlayedPod

CONFIGURATION = """
[engine]
cgroup_manager="cgroupfs"
events_logger="file"
runtime="runc"
[network]
network_backend="netavark"
[containers]
log_driver="k8s-file"
default_ulimits=["nofile=16384:16384","nproc=16384:16384"]
"""
IMAGES = ("control", "trainer-cpu", "sampler-cpu")


def missing(tag: str) -> str:
    """Why the lane cannot run here; "" when it can."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    if os.geteuid() != 0:
        return "volumes are handed to the pods' user, which takes root"
    podman = Podman(Path(tempfile.mkdtemp(prefix="podman-")), "none")
    absent = [name for name in IMAGES if not podman.has_image(f"localhost/tinkermesh-{name}:{tag}")]
    return f"images {', '.join(absent)} are not built: make images" if absent else ""


class Podman:
    def __init__(self, directory: Path, network: str) -> None:
        self._directory = directory
        self.network = network
        (directory / "containers.conf").write_text(CONFIGURATION)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(directory / "containers.conf")}

    def run(self, *arguments: str, seconds: float = 60.0, check: bool = True) -> str:
        """stdout and stderr. Raises AssertionError with them when the command fails."""
        done = subprocess.run(
            ["podman", *arguments], env=self._environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"podman {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout + done.stderr

    def has_image(self, name: str) -> bool:
        return subprocess.run(["podman", "image", "exists", name], env=self._environment, check=False).returncode == 0

    def create_network(self) -> str:
        """Answers the host's address in it."""
        self.run("network", "create", self.network)
        found = json.loads(self.run("network", "inspect", self.network))[0]
        return str(found["subnets"][0]["gateway"])

    def play(self, pod: PlayedPod) -> None:
        file = self._directory / f"{pod.name}.yaml"
        file.write_text(yaml.safe_dump(pod.document))
        aliases = ",".join(f"alias={alias}" for alias in pod.aliases)
        self.run("kube", "play", "--network", f"{self.network}:{aliases}", str(file), seconds=120)

    def container(self, pod: PlayedPod) -> str:
        return f"{pod.name}-{pod.document['spec']['containers'][0]['name']}"

    def address(self, pod: PlayedPod) -> str:
        networks = json.loads(self.run("pod", "inspect", pod.name))["InfraContainerID"]
        found = json.loads(self.run("inspect", networks))[0]["NetworkSettings"]["Networks"]
        return str(found[self.network]["IPAddress"])

    def execute(self, pod: PlayedPod, *command: str, check: bool = True) -> str:
        return self.run("exec", self.container(pod), *command, check=check)

    def healthy(self, pod: PlayedPod, command: Sequence[str]) -> bool:
        done = subprocess.run(
            ["podman", "exec", self.container(pod), *command],
            env=self._environment, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def wait_healthy(self, pod: PlayedPod, command: Sequence[str], seconds: float) -> None:
        """Raises AssertionError with the pod's log."""
        deadline = time.monotonic() + seconds
        while not self.healthy(pod, command):
            if time.monotonic() > deadline:
                raise AssertionError(f"{pod.name} is not healthy after {seconds:g} s:\n{self.logs(pod)[-4000:]}")
            time.sleep(1.0)

    def logs(self, pod: PlayedPod) -> str:
        return self.run("logs", self.container(pod), check=False)

    def wait_ended(self, pod: PlayedPod, seconds: float) -> int:
        return int(self.run("wait", self.container(pod), seconds=seconds).split()[0])

    def kill_process(self, pod: PlayedPod) -> int:
        """SIGKILL to the container's own process, from outside: as a node's memory killer would. Answers its pid."""
        pid = int(self.run("inspect", "--format", "{{.State.Pid}}", self.container(pod)))
        os.kill(pid, signal.SIGKILL)
        return pid

    def pid(self, pod: PlayedPod) -> int:
        return int(self.run("inspect", "--format", "{{.State.Pid}}", self.container(pod)))

    def remove(self, pods: Sequence[PlayedPod]) -> None:
        for pod in pods:
            self.run("pod", "rm", "-f", "-t", "5", pod.name, check=False, seconds=120)
        self.run("network", "rm", "-f", self.network, check=False)
