"""The chart's pods, rendered from the laptop's values, as real containers: the SDK trains and samples, state survives.

`make podman-test` after `make images`; see docs/install.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chart.helm import CHART, ROOT, Rendered, example, merged, render
from tests.doubles.eventually import until
from tests.doubles.otlp import Receiver
from tests.podman.engine import Podman, missing
from tests.podman.play import Converter, PlayedPod

pytestmark = [pytest.mark.podman, pytest.mark.timeout(900)]

TAG = "0.1.0"
NAMESPACE = "mesh"
READY_SECONDS = {"redis": 30.0, "scheduler": 60.0, "gateway": 60.0, "trainer": 120.0, "sampler": 120.0}
ORDER = list(READY_SECONDS)
GATEWAY_PROBE = (
    "python",
    "-c",
    "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/api/v1/healthz', timeout=3)",
)
MODEL = os.environ.get("TINKERMESH_TEST_MODEL", str(Path.home() / ".cache/tinkermesh/models/tiny-qwen3"))


@dataclass
class Containers:
    podman: Podman
    pods: list[PlayedPod]
    converter: Converter
    receiver: Receiver
    rendered: Rendered

    def one(self, component: str) -> PlayedPod:
        return next(pod for pod in self.pods if pod.component == component)

    def probe(self, pod: PlayedPod) -> tuple[str, ...]:
        return GATEWAY_PROBE if pod.component == "gateway" else pod.probe


def readable_model(root: Path) -> Path:
    """A copy that the pods' user may read."""
    place = root / "model"
    shutil.copytree(MODEL, place)
    for file in place.iterdir():
        file.chmod(0o444)
    place.chmod(0o755)
    return place


def values(collector: str, model_directory: Path) -> dict[str, Any]:
    """The laptop's, with a small model and this test's receiver in place of Jaeger."""
    model = {"path": "/models", "volume": {"hostPath": {"path": str(model_directory), "type": "Directory"}}}
    pool = {"baseModel": "tiny-qwen3", "maxContext": 128, "model": model}
    return merged(
        example(CHART / "examples" / "laptop.yaml"),
        {"jaeger": {"enabled": False}, "tracing": {"endpoint": collector}},
        {"redis": {"image": {"repository": "localhost/tinkermesh-test-redis", "tag": TAG}}},
        {"pools": {"smollm2-135m-instruct": None, "tiny": pool}},
        {"gateway": {"service": {"port": 8000}}},  # a network alias maps no ports
        {"gateway": {"extraEnv": DELAY}, "scheduler": {"extraEnv": DELAY}},
        {"poolDefaults": {"trainer": {"extraEnv": DELAY}, "samplers": {"both": {"extraEnv": DELAY}}}},
    )


DELAY = [{"name": "OTEL_BSP_SCHEDULE_DELAY", "value": "100"}]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    if reason := missing(TAG):
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("podman")
    for parent in (root, *root.parents[:2]):
        parent.chmod(0o755)  # the pods' user must reach its volumes
    podman = Podman(root, f"mesh-{os.getpid()}")
    build_redis(podman)
    host = podman.create_network()
    pods: list[PlayedPod] = []
    with Receiver("0.0.0.0") as receiver:
        rendered = render(values(f"http://{host}:{receiver.port}", readable_model(root)), "--kube-version", "1.23.0")
        converter = Converter(rendered, root, NAMESPACE)
        try:
            pods = sorted(converter.pods(), key=lambda pod: ORDER.index(pod.component))
            running = Containers(podman, pods, converter, receiver, rendered)
            for pod in pods:
                podman.play(pod)
            for pod in pods:
                podman.wait_healthy(pod, running.probe(pod), READY_SECONDS[pod.component])
            yield running
        finally:
            podman.remove([*pods, converter.test_pod()])


def build_redis(podman: Podman) -> None:
    """Once: Debian's Redis on whatever base the mesh's images have."""
    image = f"localhost/tinkermesh-test-redis:{TAG}"
    if not podman.has_image(image):
        base = os.environ.get("TINKERMESH_TEST_BASE_IMAGE", "docker.io/library/debian:12-slim")
        file = Path(__file__).with_name("redis.Containerfile")
        podman.run(
            "build", "--network", "host", "--build-arg", f"BASE={base}", "-f", str(file), "-t", image, seconds=600
        )


@pytest.fixture(scope="module")
def key(mesh: Containers) -> str:
    """Made as NOTES.txt says."""
    said = mesh.podman.execute(mesh.one("scheduler"), "tinkermesh", "keys", "create", "--scheduler", "127.0.0.1:7001")
    return next(word.strip() for word in said.split() if word.startswith("tml-"))


def sdk(mesh: Containers, key: str, *arguments: str) -> dict[str, Any]:
    url = f"http://{mesh.podman.address(mesh.one('gateway'))}:8000"
    environment = {**os.environ, "TINKER_BASE_URL": url, "TINKER_API_KEY": key, "no_proxy": "*", "NO_PROXY": "*"}
    script = str(ROOT / "tests" / "podman" / "sdk_smoke.py")
    done = subprocess.run(
        [sys.executable, script, *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def smoke(mesh: Containers, key: str) -> dict[str, Any]:
    return sdk(mesh, key)


def test_every_pod_is_healthy_by_its_own_probe(mesh: Containers) -> None:
    for pod in mesh.pods:
        assert mesh.podman.healthy(pod, mesh.probe(pod)), pod.name
    assert {pod.component for pod in mesh.pods} == set(ORDER)


def test_containers_run_as_nobody_on_a_read_only_root(mesh: Containers) -> None:
    for pod in mesh.pods:
        assert mesh.podman.execute(pod, "id", "-u").split()[0] == "10001", pod.name
        assert "Read-only file system" in mesh.podman.execute(pod, "sh", "-c", "touch /opt/x /usr/x", check=False)


def test_the_sdk_trains_and_samples_through_the_gateway(smoke: dict[str, Any]) -> None:
    assert smoke["losses"][-1] < smoke["losses"][0]
    assert len(smoke["tokens"]) == 6


def test_the_pod_of_helm_test_succeeds(mesh: Containers) -> None:
    pod = mesh.converter.test_pod()
    mesh.podman.play(pod)
    code = mesh.podman.wait_ended(pod, 120)
    assert code == 0, mesh.podman.logs(pod)
    assert "tiny-qwen3 trains and samples" in mesh.podman.logs(pod)


def test_one_trace_shows_the_job_from_the_gateway_to_the_trainer(mesh: Containers, smoke: dict[str, Any]) -> None:
    spans = mesh.receiver.wait(lambda found: any(s.name == "trainer.pass" for s in found))
    trace = next(span.trace_id for span in spans if span.name == "trainer.pass")
    mesh.receiver.wait_trace(trace, "trainer: trainer.pass", "gateway: POST /api/v1/forward_backward")


def test_logs_show_the_job(mesh: Containers, smoke: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in mesh.podman.logs(mesh.one("scheduler")).splitlines() if line.startswith("{")]
    assert any("request_id" in line or "model_id" in line for line in lines)
    assert all(line["service"] == "scheduler" for line in lines)


def test_redis_killed_comes_back_with_everything(mesh: Containers, key: str, smoke: dict[str, Any]) -> None:
    """Keys, the catalog and the snapshot are what they were."""
    redis = mesh.one("redis")
    before = mesh.podman.kill_process(redis)
    until(lambda: mesh.podman.pid(redis) not in (0, before), seconds=30)
    mesh.podman.wait_healthy(redis, redis.probe, 30)
    mesh.podman.wait_healthy(mesh.one("scheduler"), mesh.one("scheduler").probe, 60)
    assert sdk(mesh, key, smoke["path"])["tokens"] == smoke["tokens"]
