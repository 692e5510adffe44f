"""The pod of `helm test`, run as a process against a mesh of doubles: its own command and variables."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from services.common.model_files import pool_name
from tests.chart.helm import ROOT
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.kube.cluster import ControlPlane, Object

SERVED = {"smollm2-135m-instruct": pool_name(BASE_MODEL), "qwen3-30b-a3b": pool_name(BASE_MODEL)}
"""Pool of the examples -> the one that the mesh of doubles has. Any other pool is not there."""


def run_in_place_of_the_container(plane: ControlPlane, mesh: MeshProcesses, pod: Object) -> tuple[int, str]:
    """Exit code and what it printed. Only addresses, and the pool's name, are this machine's."""
    container = pod["spec"]["containers"][0]
    variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    pool = SERVED.get(variables["POOL"], variables["POOL"])
    local = {"GATEWAY": mesh.base_url, "SCHEDULER": mesh.scheduler, "POOL": pool}
    with tempfile.TemporaryDirectory() as place:
        for mounted, name in _scripts(pod).items():
            data = plane.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/{name}")["data"]
            for file, text in data.items():
                (Path(place) / file).write_text(text)
            command = [part.replace(mounted, place) for part in container["command"]]
        environment = {**os.environ, **variables, **local, "HOME": place, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def _scripts(pod: Object) -> dict[str, str]:
    """Where a ConfigMap is mounted -> its name."""
    maps = {v["name"]: v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    return {mount["mountPath"]: maps[mount["name"]] for mount in mounts if mount["name"] in maps}
