"""A trainer of two pods: the chart's own command, run as two processes that stand for the pods."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.grpc_channel import blocking_channel
from tests.chart.helm import REQUIRED, ROOT, at, merged, render
from tests.chart.switches import BASE, NODES
from tests.doubles.eventually import until
from tests.doubles.valkey import free_port


def started(node: int, directory: Path, ports: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Pod `node`, with the rendered command and variables; only addresses and paths are this machine's."""
    values = at("pools.p", {"maxContext": 128, "trainer": {"settings": {"threads": 1}}})
    rendered = render(merged(BASE, NODES, values))
    container = rendered.pod_templates()["StatefulSet/t-tinkermesh-trainer-p"]["spec"]["containers"][0]
    host = "t-tinkermesh-trainer-p-0.t-tinkermesh-trainer-p.mesh.svc"
    command = [part.replace(host, "127.0.0.1").replace("29500", str(ports[0])) for part in container["command"]]
    own = {
        "LISTEN": f"127.0.0.1:{ports[1]}",
        "ADVERTISE": "",
        "MODEL_PATH": str(directory / "model"),
        "STORE_ROOT": str(directory / "store"),
        "SCHEDULERS": "",
    }
    environment = {
        **os.environ,
        **rendered.environment("StatefulSet/trainer-p"),
        **{f"TINKERMESH_TRAINER_{name}": value for name, value in own.items()},
        "HOSTNAME": f"t-tinkermesh-trainer-p-{node}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with (directory / f"{node}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


@pytest.mark.engine
@pytest.mark.skipif(not os.environ.get(REQUIRED), reason="two Megatron ranks take half a minute: make chart-test")
def test_two_pods_make_one_trainer_and_stop_in_order(tmp_path: Path) -> None:
    from tinkermesh.v1 import trainer_pb2, trainer_pb2_grpc

    from tools.make_tiny_qwen3 import build  # torch, which no other test of the chart needs

    build(tmp_path / "model")
    ports = (free_port(), free_port())
    pods = [started(node, tmp_path, ports) for node in (0, 1)]
    try:
        with blocking_channel(f"127.0.0.1:{ports[1]}") as channel:
            described = trainer_pb2_grpc.TrainerStub(channel).Describe(
                trainer_pb2.DescribeTrainerRequest(), timeout=120, wait_for_ready=True
            )
        assert described.world_size == 2
    finally:
        for pod in pods:
            pod.send_signal(signal.SIGTERM)
        ended = until(lambda: all(pod.poll() is not None for pod in pods), 60)
    log = (tmp_path / "0.log").read_text()
    assert ended
    assert "SIGKILL" not in log, log[-3000:]
