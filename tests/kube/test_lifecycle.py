"""The life of a release against a real API server: install, test, upgrade, a failed upgrade, rollback, uninstall.

`make kube-test`; see docs/install.md. Pods are objects whose kubelet is a double (kubelet.py): controllers, scheduler,
admission and helm are real. Tests of one helm run in their order, each from where the one before has left the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.chart.helm import CHART, at, binary, example, merged
from tests.doubles.eventually import until
from tests.kube.cluster import ControlPlane, Object
from tests.kube.kubelet import Kubelet
from tests.kube.releases import RELEASE, Namespace, component, condition, identities, provide_volumes

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

LAPTOP = example(CHART / "examples" / "laptop.yaml")
POOL = "smollm2-135m-instruct"
POLLS = at("gateway.settings.longPollSeconds", 20)
SOON = 60.0


def values(*more: Mapping[str, Any]) -> dict[str, Any]:
    """The laptop's, with two gateways."""
    return merged(LAPTOP, {"gateway": {"replicas": 2}, "test": {"timeoutSeconds": 30}}, *more)


@pytest.fixture(scope="module", params=["helm3", "helm4"])
def release(request: pytest.FixtureRequest, plane: ControlPlane, kubelet: Kubelet) -> Iterator[Namespace]:
    binary(request.param)
    provide_volumes(plane, request.param)
    namespace = Namespace(plane, f"mesh-{request.param}", request.param)
    namespace.create()
    yield namespace
    namespace.run("uninstall", RELEASE)


def pepper(release: Namespace) -> str:
    return str(release.one("Secret", "auth")["data"]["pepper"])


def test_install_waits_until_every_pod_is_ready(release: Namespace) -> None:
    """By an installer with rights in this namespace alone."""
    release.install(values())
    assert release.revisions() == [(1, "deployed")]
    assert sorted(component(pod) for pod in release.ready()) == [
        "gateway",
        "gateway",
        "jaeger",
        "redis",
        "sampler",
        "scheduler",
        "trainer",
    ]
    claims = {name: claim["status"]["phase"] for name, claim in release.all("PersistentVolumeClaim").items()}
    assert claims == {"mesh-tinkermesh-store": "Bound", "data-mesh-tinkermesh-redis-0": "Bound"}


def test_helm_test_trains_one_step_and_shows_its_log(release: Namespace) -> None:
    said = release.done("test", RELEASE, "--logs")
    assert "Succeeded" in said
    assert "loss " in said and "sampled " in said
    assert "trains and samples" in said


def test_an_upgrade_that_changes_nothing_replaces_no_pod(release: Namespace) -> None:
    before, secret = identities(release.ready()), pepper(release)
    release.upgrade(values())
    assert identities(release.ready()) == before
    assert pepper(release) == secret, "the pepper that was drawn at the first install stays"


def test_an_upgrade_replaces_the_pods_of_what_changed_and_no_others(release: Namespace) -> None:
    engines = identities(release.ready("trainer") + release.ready("sampler") + release.ready("redis"))
    gateways = identities(release.ready("gateway"))
    release.upgrade(values(POLLS))
    until(lambda: len(release.pods("gateway")) == 2, SOON)
    assert not gateways & identities(release.pods("gateway"))
    assert identities(release.ready("trainer") + release.ready("sampler") + release.ready("redis")) == engines
    assert release.one("ConfigMap", "gateway")["data"]["TINKERMESH_GATEWAY_LONG_POLL_SECONDS"] == "20"


def test_a_trainer_is_replaced_when_its_settings_change(release: Namespace) -> None:
    before = identities(release.ready("trainer"))
    release.upgrade(values(POLLS, at(f"pools.{POOL}.trainer.settings.slots", 6)))
    assert len(release.ready("trainer")) == 1
    assert not before & identities(release.ready("trainer"))


def test_what_an_autoscaler_has_set_stays_over_an_upgrade(release: Namespace) -> None:
    """The controller gives it minReplicas, without any metrics; helm does not take them back while it is there."""
    scaled = at("poolDefaults.samplers.both.autoscaling", {"kind": "hpa", "minReplicas": 2, "queueAgeSeconds": 10})
    release.upgrade(values(POLLS, scaled))
    until(lambda: len(release.ready("sampler")) == 2, SOON)
    samplers = identities(release.ready("sampler"))
    release.upgrade(values(POLLS, scaled, at("gateway.replicas", 3)))
    assert len(release.ready("gateway")) == 3
    assert identities(release.ready("sampler")) == samplers
    release.upgrade(values(POLLS))
    until(lambda: len(release.pods("sampler")) == 1 and len(release.pods("gateway")) == 2, SOON)


def test_an_upgrade_that_never_gets_ready_fails_and_what_served_serves_on(release: Namespace) -> None:
    serving = identities(release.ready("gateway"))
    assert len(serving) == 2
    arguments = ("upgrade", RELEASE, str(CHART), "--wait", "--timeout", "10s")
    done = release.run(*arguments, values=values(at("image.tag", "broken")))
    assert done.returncode != 0
    assert release.revisions()[-1][1] == "failed"
    assert identities(release.ready("gateway")) == serving, "no gateway goes before another is there"


def test_rollback_brings_the_last_good_revision_back(release: Namespace) -> None:
    good = max(number for number, status in release.revisions() if status in ("deployed", "superseded"))
    release.done("rollback", RELEASE, str(good), "--wait", "--timeout", "120s")
    assert release.revisions()[-1][1] == "deployed"
    until(lambda: all(condition(pod, "Ready") == "True" for pod in release.pods() if phase(pod) != "Succeeded"), SOON)
    images = {pod["spec"]["containers"][0]["image"] for pod in release.pods()}
    assert not [image for image in images if image.endswith(":broken")]


def test_helm_test_fails_where_the_pool_does_not_train(release: Namespace) -> None:
    """The control of the hook: a pool that has not registered."""
    pools = {POOL: None, "elsewhere": LAPTOP["pools"][POOL]}
    release.upgrade(values({"pools": pools}, at("test.timeoutSeconds", 10)))
    done = release.run("test", RELEASE, "--logs")
    assert done.returncode != 0
    assert "pool elsewhere has not registered" in done.stdout + done.stderr


def test_uninstall_leaves_the_pepper_and_the_store_and_the_next_install_takes_them_up(release: Namespace) -> None:
    secret = pepper(release)
    release.done("uninstall", RELEASE, "--wait", "--timeout", "120s")
    assert set(release.all("Deployment")) == set(release.all("StatefulSet")) == set()
    until(
        lambda: (
            not [pod for pod in release.pods() if pod["metadata"]["labels"]["app.kubernetes.io/component"] != "test"]
        ),
        SOON,
    )
    assert "mesh-tinkermesh-auth" in release.all("Secret")
    assert {"mesh-tinkermesh-store", "data-mesh-tinkermesh-redis-0"} <= set(release.all("PersistentVolumeClaim"))
    release.install(values())
    assert pepper(release) == secret


def phase(pod: Object) -> str:
    return str(pod["status"].get("phase"))
