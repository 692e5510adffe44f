"""What a node's kubelet tells the API server, without containers: pods that are bound become ready, or do not.

A pod that runs once (`restartPolicy: Never`) is given to `run`, which answers its exit code and what it printed: the
kubelet double then says that it succeeded or failed, and serves its log as a kubelet would.
"""

from __future__ import annotations

import datetime
import itertools
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.doubles.certificates import Authority
from tests.kube.cluster import ControlPlane, Object, Refused

PERIOD = 0.1
BROKEN_TAG = ":broken"
"""Pods with an image of this tag never become ready."""

Run = Callable[[Object], tuple[int, str]]


class Kubelet:
    """One for all nodes of the cluster: `with Kubelet(plane, directory, run): ...`"""

    def __init__(self, plane: ControlPlane, directory: Path, run: Run) -> None:
        self._plane = plane
        self._run = run
        self._logs: dict[str, str] = {}
        self._addresses = itertools.count(2)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="kubelet", daemon=True)
        self._server = _log_server(directory, self._logs)
        self.failure = ""

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="kubelet-logs", daemon=True).start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(30)
        self._server.shutdown()

    def add_node(self, name: str, **capacity: str) -> None:
        """A ready node; `capacity` beside CPU, memory and pods, such as GPUs."""
        resources = {"cpu": "64", "memory": "512Gi", "pods": "110", **capacity}
        self._plane.create(
            "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}}
        )
        status = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "double"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_port}},
        }
        self._plane.merge(f"/api/v1/nodes/{name}/status", {"status": status})
        self._plane.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def remove_node(self, name: str) -> None:
        self._plane.call("DELETE", f"/api/v1/nodes/{name}")

    def _loop(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                pods = self._plane.items("/api/v1/pods")
            except OSError:  # a server that is slow to answer: the next round asks again
                continue
            for pod in pods:
                self._tend_safely(pod)

    def _tend_safely(self, pod: Object) -> None:
        try:
            self._tend(pod)
        except OSError:
            return
        except Refused as refused:
            if refused.status not in (404, 409):  # gone, or changed meanwhile: the next round sees it
                self.failure = str(refused)

    def _tend(self, pod: Object) -> None:
        metadata, status = pod["metadata"], pod.get("status", {})
        if "deletionTimestamp" in metadata:
            self._end(pod)
        elif pod["spec"].get("nodeName") and status.get("phase") == "Pending" and "podIP" not in status:
            if pod["spec"]["restartPolicy"] == "Never":
                self._run_once(pod)
            else:
                self._tell(pod, "Running", ready=not _broken(pod))

    def _end(self, pod: Object) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._plane.call("DELETE", _path(pod), options)

    def _run_once(self, pod: Object) -> None:
        code, printed = self._run(pod)
        self._logs[f"/containerLogs/{_key(pod)}/{pod['spec']['containers'][0]['name']}"] = printed
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": _now()}
        self._tell(pod, "Failed" if code else "Succeeded", ready=False, state={"terminated": ended})

    def _tell(self, pod: Object, phase: str, *, ready: bool, state: Object | None = None) -> None:
        said = "True" if ready else "False"
        conditions = [
            {"type": name, "status": said if name.endswith("Ready") else "True", "lastTransitionTime": _now()}
            for name in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ]
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": f"double://{container['image']}",
                "containerID": f"double://{pod['metadata']['uid']}/{container['name']}",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state or {"running": {"startedAt": _now()}},
            }
            for container in pod["spec"]["containers"]
        ]
        number = next(self._addresses)
        address = f"10.1.{number // 250}.{number % 250 + 1}"
        status: Object = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
        status |= {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1", "startTime": _now()}
        self._plane.merge(f"{_path(pod)}/status", {"status": status})


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _broken(pod: Object) -> bool:
    return any(container["image"].endswith(BROKEN_TAG) for container in pod["spec"]["containers"])


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _log_server(directory: Path, logs: dict[str, str]) -> ThreadingHTTPServer:
    """Where the API server fetches logs: over TLS, whose certificate it does not check unless told to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            log = logs.get(self.path.partition("?")[0])
            self.send_response(404 if log is None else 200)
            self.end_headers()
            self.wfile.write((log or "").encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    directory.mkdir(parents=True, exist_ok=True)
    files = Authority(directory, "kubelet-authority").issue("kubelet", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
