"""helm against the real API server, as an installer who has rights in one namespace alone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.helm import CHART, ROOT, binary
from tests.kube.cluster import ControlPlane, Object, Refused

GROUPS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Pod": "v1",
    "Secret": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
RELEASE = "mesh"
PATIENCE = "120s"


@dataclass(frozen=True)
class Namespace:
    """One namespace with one release `mesh`, driven by one helm."""

    plane: ControlPlane
    name: str
    helm: str
    user: str = "installer"

    def create(self) -> None:
        self.plane.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
        who = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "installer"}
        binding = {"metadata": {"name": "installer"}, "roleRef": role, "subjects": [who]}
        self.plane.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}/rolebindings", binding)

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """helm with these arguments; `values` as its last file."""
        with tempfile.TemporaryDirectory() as home:
            file = Path(home) / "values.json"
            file.write_text(json.dumps(values))
            given = [] if values is None else ["-f", str(file)]
            environment = {"HOME": home, "PATH": os.environ["PATH"]}
            kubeconfig = ["--kubeconfig", str(self.plane.kubeconfig(self.user)), "-n", self.name]
            command = [binary(self.helm), *arguments, *given, *kubeconfig]
            return subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
            )

    def done(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """stdout. Raises AssertionError with what helm said when it fails."""
        ran = self.run(*arguments, values=values)
        if ran.returncode:
            raise AssertionError(f"helm {' '.join(arguments)}: {ran.stdout}{ran.stderr}\n{self.pods_in_words()}")
        return ran.stdout

    def install(self, values: Mapping[str, Any]) -> str:
        return self.done("install", RELEASE, str(CHART), "--wait", "--timeout", PATIENCE, values=values)

    def upgrade(self, values: Mapping[str, Any]) -> str:
        return self.done("upgrade", RELEASE, str(CHART), "--wait", "--timeout", PATIENCE, values=values)

    def revisions(self) -> list[tuple[int, str]]:
        """Number and status, oldest first."""
        history = json.loads(self.done("history", RELEASE, "-o", "json"))
        return [(entry["revision"], entry["status"]) for entry in history]

    def all(self, kind: str) -> dict[str, Object]:
        """Name -> object."""
        return {item["metadata"]["name"]: item for item in self.plane.items(self._path(kind))}

    def one(self, kind: str, part: str) -> Object:
        return self.plane.get(f"{self._path(kind)}/{RELEASE}-tinkermesh-{part}")

    def has(self, kind: str, part: str) -> bool:
        try:
            self.one(kind, part)
        except Refused as refused:
            if refused.status != 404:
                raise
            return False
        return True

    def pods(self, which: str = "") -> list[Object]:
        return [pod for pod in self.all("Pod").values() if which in ("", component(pod))]

    def ready(self, which: str = "") -> list[Object]:
        return [pod for pod in self.pods(which) if condition(pod, "Ready") == "True"]

    def pods_in_words(self) -> str:
        """For the text of a failure."""
        return "\n".join(
            f"{pod['metadata']['name']} {pod['status'].get('phase')} on {pod['spec'].get('nodeName')} "
            f"{[c.get('message') for c in pod['status'].get('conditions', [])]}"
            for pod in self.pods()
        )

    def _path(self, kind: str) -> str:
        group = GROUPS[kind]
        return f"/{'api' if group == 'v1' else 'apis'}/{group}/namespaces/{self.name}/" + PLURALS.get(
            kind, f"{kind.lower()}s"
        )


def claim_models(plane: ControlPlane, namespace: str) -> None:
    """The claim `models` that the GPU examples expect, with its namespace."""
    with contextlib.suppress(Refused):  # it is there since the test before
        plane.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    plane.create(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {"metadata": {"name": "models"}, "spec": spec}
    )


def condition(item: Object, name: str) -> str:
    found = [entry["status"] for entry in item["status"].get("conditions", []) if entry["type"] == name]
    return str(found[0]) if found else ""


def identities(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def component(item: Object) -> str:
    return str(item["metadata"]["labels"]["app.kubernetes.io/component"])


def provide_volumes(plane: ControlPlane, name: str, many: int = 2) -> None:
    """What a provisioner would make for the claims of one release: store and Redis."""
    for number in range(many):
        spec = {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": "made",
            "hostPath": {"path": f"/var/lib/made/{name}-{number}"},
        }
        plane.create("/api/v1/persistentvolumes", {"metadata": {"name": f"{name}-{number}"}, "spec": spec})
