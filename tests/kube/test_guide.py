"""The helm commands of docs/install.md as they stand there, against a real API server; `make kube-test`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.chart.helm import any_helm, example
from tests.chart.test_install_guide import INSTALLS, ROOT, after, words
from tests.doubles.eventually import until
from tests.kube.cluster import ControlPlane, Object
from tests.kube.kubelet import Kubelet
from tests.kube.releases import RELEASE, Namespace, claim_models, provide_volumes

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

NUMBERS = itertools.count()
GPU = "nvidia.com/gpu"
RUN_HERE = [command for command in INSTALLS if "cluster.yaml" not in command]
ONE_NODE = next(command for command in INSTALLS if "one-8-gpu-node" in command)


@pytest.fixture
def namespace(plane: ControlPlane, kubelet: Kubelet) -> Iterator[Namespace]:
    """The guide's namespace, which its commands make; emptied afterwards."""
    provide_volumes(plane, f"guide-{next(NUMBERS)}", many=3)
    claim_models(plane, "tinkermesh")
    found = Namespace(plane, "tinkermesh", any_helm(), "administrator")
    yield found
    found.done("uninstall", RELEASE, "--wait")
    for name in found.all("PersistentVolumeClaim"):
        plane.call("DELETE", f"/api/v1/namespaces/tinkermesh/persistentvolumeclaims/{name}")
    until(lambda: not found.all("PersistentVolumeClaim"), 60)


def gpus(pod: Object) -> int:
    return sum(int(c["resources"].get("limits", {}).get(GPU, 0)) for c in pod["spec"]["containers"])


@pytest.mark.parametrize("command", RUN_HERE)
def test_install_and_test_as_the_guide_says(namespace: Namespace, command: str) -> None:
    said = namespace.done(*words(command)[1:])
    assert "A first key" in said and "keys create" in said
    assert "trains and samples" in namespace.done(*words("helm test mesh -n tinkermesh --logs")[1:])


def test_eight_gpus_go_to_one_trainer_and_four_samplers(namespace: Namespace) -> None:
    """By the real scheduler: nobody waits and nothing is left."""
    namespace.done(*words(ONE_NODE)[1:])
    assert [gpus(pod) for pod in namespace.ready("trainer")] == [4]
    assert [gpus(pod) for pod in namespace.ready("sampler")] == [1, 1, 1, 1]
    assert {pod["spec"]["nodeName"] for pod in namespace.ready() if gpus(pod)} == {"gpu-node-1"}


def test_on_a_node_with_seven_a_pod_waits(namespace: Namespace, kubelet: Kubelet) -> None:
    """The control: the node is really counted."""
    kubelet.add_node("seven", **{GPU: "7"})
    values = example(ROOT / after(words(ONE_NODE), "-f"))
    arguments = ("install", RELEASE, words(ONE_NODE)[3], "--create-namespace")
    namespace.done(*arguments, values={**values, "singleNode": {"gpus": 8, "hostname": "seven"}})

    def waiting() -> list[Object]:
        found = [entry for pod in namespace.pods() for entry in pod["status"].get("conditions", [])]
        return [entry for entry in found if entry.get("reason") == "Unschedulable" and GPU in entry["message"]]

    assert len(until(waiting, 60)) == 1
    kubelet.remove_node("seven")
