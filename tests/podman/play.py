"""The chart's pods as real containers: a rendering in, documents for `podman kube play` out.

What podman 4.3 does not do of Kubernetes is done here: one Pod per replica, Services as network aliases, ConfigMaps,
Secrets and claims as directories of the host (owned by the pods' user, as fsGroup would), variables resolved. Probes
are left to the test, which calls them.
"""

from __future__ import annotations

import base64
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.helm import Object, Rendered

USER = 10001


@dataclass(frozen=True)
class PlayedPod:
    """One document, and the names others find it by."""

    name: str
    component: str
    aliases: tuple[str, ...]
    document: Object
    probe: tuple[str, ...]
    """Command of its readiness probe; () where the kubelet would ask itself."""


class Converter:
    """`root`: where the host keeps what volumes hold; claims outlive the pods."""

    def __init__(self, rendered: Rendered, root: Path, namespace: str) -> None:
        self._rendered = rendered
        self._root = root
        self._namespace = namespace

    def pods(self) -> list[PlayedPod]:
        return [
            self._pod(f"{item['metadata']['name']}-{number}", item)
            for item in self._rendered.of_kind("StatefulSet", "Deployment")
            for number in range(item["spec"]["replicas"])
        ]

    def test_pod(self) -> PlayedPod:
        item = self._rendered.of_kind("Pod")[0]
        return self._pod(item["metadata"]["name"], {"spec": {"template": item}, "metadata": item["metadata"]})

    def _pod(self, name: str, owner: Object) -> PlayedPod:
        template = owner["spec"]["template"]
        container = template["spec"]["containers"][0]
        labels = template["metadata"]["labels"]
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": labels["app.kubernetes.io/component"]}},
            "spec": {
                # `Always` would start init containers over and over; the engine restarts what fails.
                "restartPolicy": "Never" if owner["spec"].get("replicas") is None else "OnFailure",
                "securityContext": {"runAsUser": USER, "runAsGroup": USER},
                "containers": [self._container(name, owner, container)],
                "volumes": self._volumes(name, owner),
            },
        }
        probe = container.get("readinessProbe", {}).get("exec", {}).get("command", ())
        return PlayedPod(
            name, labels["app.kubernetes.io/component"], self._aliases(name, labels), document, tuple(probe)
        )

    def _aliases(self, name: str, labels: dict[str, str]) -> tuple[str, ...]:
        """What cluster DNS would know it as."""
        found = [name]
        for service in self._rendered.of_kind("Service"):
            if service["spec"]["selector"].items() <= labels.items():
                own = f"{service['metadata']['name']}.{self._namespace}.svc"
                found += [own, f"{name}.{own}"]
        return tuple(found)

    def _container(self, pod: str, owner: Object, container: Object) -> Object:
        kept = {key: container[key] for key in ("name", "image", "command", "args") if key in container}
        context = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "runAsUser": USER}
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "shm"]
        variables = [{"name": name, "value": value} for name, value in self._variables(pod, container).items()]
        limits = {"memory": container["resources"]["limits"]["memory"]}
        return {
            **kept,
            "env": variables,
            "volumeMounts": mounts,
            "securityContext": {**context, "capabilities": {"drop": ["ALL"]}},
            "resources": {"limits": limits},
        }

    def _variables(self, pod: str, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= self._rendered.by_key[f"ConfigMap/{source['configMapRef']['name']}"]["data"]
        for entry in container.get("env", []):
            reference = entry.get("valueFrom", {})
            if "secretKeyRef" in reference:
                data = self._rendered.by_key[f"Secret/{reference['secretKeyRef']['name']}"]["data"]
                found[entry["name"]] = base64.b64decode(data[reference["secretKeyRef"]["key"]]).decode()
            elif "fieldRef" in reference:
                found[entry["name"]] = pod  # its name resolves, as its address would
            else:
                found[entry["name"]] = entry["value"]
        return {k: v.replace("$(POD_NAME)", pod).replace("$(POD_IP)", pod) for k, v in found.items()}

    def _volumes(self, pod: str, owner: Object) -> list[Object]:
        made = [self._volume(pod, volume) for volume in owner["spec"]["template"]["spec"].get("volumes", [])]
        claims = [_host(t["metadata"]["name"], self._directory(f"claims/{t['metadata']['name']}-{pod}"))
                  for t in owner["spec"].get("volumeClaimTemplates", [])]  # fmt: skip
        return [volume for volume in [*made, *claims] if volume is not None]

    def _volume(self, pod: str, volume: Object) -> Object | None:
        name = volume["name"]
        if name == "shm":
            return None
        if "hostPath" in volume:
            return volume
        if "persistentVolumeClaim" in volume:
            return _host(name, self._directory(f"claims/{volume['persistentVolumeClaim']['claimName']}"))
        place = self._directory(f"pods/{pod}/{name}")
        if "secret" in volume:
            data = self._rendered.by_key[f"Secret/{volume['secret']['secretName']}"]["data"]
            _fill(place, {key: base64.b64decode(value) for key, value in data.items()})
        elif "configMap" in volume:
            data = self._rendered.by_key[f"ConfigMap/{volume['configMap']['name']}"]["data"]
            _fill(place, {key: value.encode() for key, value in data.items()})
        return _host(name, place)

    def _directory(self, relative: str) -> Path:
        place = self._root / relative
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, USER, USER)
        return place


def _host(name: str, place: Path) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": str(place), "type": "Directory"}}


def _fill(place: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (place / name).write_bytes(content)
        (place / name).chmod(0o440)
        os.chown(place / name, USER, USER)


def remove(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
