"""One control plane, with one node that has eight GPUs, for all tests of the lane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.mesh import MeshProcesses
from tests.kube.cluster import ControlPlane, missing
from tests.kube.kubelet import Kubelet
from tests.kube.runner import run_in_place_of_the_container

NODE = "gpu-node-1"


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """What the pods of `helm test` reach: real gateway, scheduler and Redis, doubled engines."""
    with MeshProcesses(tmp_path_factory.mktemp("mesh")) as running:
        yield running


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if reason := missing():
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("plane")) as running:
        running.create(
            "/apis/storage.k8s.io/v1/storageclasses",
            {
                "metadata": {"name": "made", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": "kubernetes.io/no-provisioner",
            },
        )
        yield running


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane, mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with Kubelet(
        plane, tmp_path_factory.mktemp("kubelet"), lambda pod: run_in_place_of_the_container(plane, mesh, pod)
    ) as running:
        running.add_node(NODE, **{"nvidia.com/gpu": "8"})
        yield running
        assert running.failure == ""
