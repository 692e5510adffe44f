"""A real Kubernetes control plane on loopback: etcd, API server, controllers and scheduler; no kubelet.

Binaries: those of a Kubernetes server release and an etcd, in TINKERMESH_TEST_KUBE_BINARIES, or what
`make kube-server` builds into ~/.cache/tinkermesh/kube/bin.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.doubles.eventually import until
from tests.doubles.valkey import free_port

BINARIES = Path(
    os.environ.get("TINKERMESH_TEST_KUBE_BINARIES", str(Path.home() / ".cache" / "tinkermesh" / "kube" / "bin"))
)
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
START_SECONDS = 120.0
# Nodes here have no kubelet that would renew their leases, and no cloud has them.
OFF = "nodelifecycle,nodeipam,route,service,cloud-node-lifecycle,ttl"

Object = dict[str, Any]


def program(name: str) -> str | None:
    own = BINARIES / name
    return str(own) if own.is_file() else shutil.which(name)


def missing() -> str:
    """Why the lane cannot run here; "" when it can."""
    absent = [name for name in NEEDED if program(name) is None]
    return (
        f"{', '.join(absent)} not in {BINARIES.name}/ or PATH: make kube-server, see docs/install.md" if absent else ""
    )


class Refused(Exception):
    """What the server answered other than success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class ControlPlane:
    """with ControlPlane(directory) as plane: plane.get("/api/v1/nodes"), plane.kubeconfig("installer")"""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        # The server makes its own certificate anew in every directory; nobody else listens on loopback here.
        self._context = ssl._create_unverified_context()

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start_all()
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_all()

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Object:
        """As the administrator. Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer administrator", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                answered: Object = json.load(answer)
                return answered
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode()[:2000]) from error

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def items(self, path: str) -> list[Object]:
        return list(self.get(path)["items"])

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def kubeconfig(self, user: str) -> Path:
        """For `administrator`, or `installer` who may do what role bindings say."""
        file = self._directory / f"{user}.kubeconfig"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        named = {"cluster": "c", "user": user}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "c", "context": named}],
            "current-context": "c",
        }
        file.write_text(json.dumps(content))
        file.chmod(0o600)
        return file

    def _start_all(self) -> None:
        (self._directory / "tokens.csv").write_text(
            'administrator,administrator,1,"system:masters"\ninstaller,installer,2\n'
        )
        key = _service_account_key(self._directory)
        etcd = self._start_etcd()
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=10.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._directory / 'certificates'}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
        )
        until(self._ready, START_SECONDS)
        kubeconfig = f"--kubeconfig={self.kubeconfig('administrator')}"
        quiet = ["--leader-elect=false", "--secure-port=0", *(["--port=0"] if self._has_plain_ports() else [])]
        self._start(
            "kube-controller-manager",
            kubeconfig,
            *quiet,
            f"--service-account-private-key-file={key}",
            f"--controllers=*,-{OFF.replace(',', ',-')}",
        )
        self._start("kube-scheduler", kubeconfig, *quiet)
        until(self._roles_are_there, START_SECONDS)

    def _start_etcd(self) -> str:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._start(
            "etcd",
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        return client

    def _start(self, name: str, *arguments: str) -> None:
        found = program(name)
        if found is None:
            raise FileNotFoundError(name)
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen([found, *arguments], stdout=log, stderr=log))

    def _has_plain_ports(self) -> bool:
        """Before 1.24 controllers and scheduler listen on a second port unless told not to."""
        return int(self.get("/version")["minor"].rstrip("+")) < 24

    def _ready(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args} ended with {process.returncode}: {self._directory}")
        try:
            self.get("/api/v1/namespaces/default")
        except (OSError, Refused):
            return False
        return True

    def _roles_are_there(self) -> bool:
        """The controllers have put the `admin` role together."""
        try:
            return bool(self.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/admin")["rules"])
        except Refused:
            return False

    def _stop_all(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _service_account_key(directory: Path) -> Path:
    file = directory / "service-account.key"
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    file.write_bytes(private.private_bytes(*form))
    file.chmod(0o600)
    return file
