"""What others say of the rendering: Kubernetes' own schemas, the schemas of foreign kinds, and a security scanner."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.helm import CHART, EXAMPLES, FULLNAME, Object, Rendered, at, example, merged, render, validator
from tests.chart.switches import (
    BASE,
    DIGEST,
    GATEWAY_HPA,
    GATEWAY_KEDA,
    HOST_MEMORY,
    INGRESS,
    LEGS,
    MONITORED,
    NODES,
    ROUTE,
    TLS,
)

SERVERS = ["1.25", "1.33", "1.37"]
CRDS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "crds").glob("*.json")}
LWS = at("pools.p.trainer.launcher", "leaderworkerset")
EVERYTHING = merged(BASE, NODES, LWS, INGRESS, ROUTE, GATEWAY_KEDA, TLS, MONITORED, {"jaeger": {"enabled": True}})
OUTSIDE = {"existingSecret": "url", "tlsSecret": "authority"}
RENDERINGS = {path.stem: example(path) for path in EXAMPLES} | {
    "defaults": {},
    "everything": EVERYTHING,
    "hpa": merged(BASE, GATEWAY_HPA, NODES),
    "legs": merged(BASE, LEGS, TLS, at("pools.p.tier.volume", HOST_MEMORY), at("redis", OUTSIDE)),
}


def as_kubernetes_knows(rendered: Rendered) -> list[Object]:
    """Foreign kinds are left out; their pods are checked as pods."""
    known = [item for item in rendered.all if item["kind"] not in CRDS]
    for item in rendered.of_kind("LeaderWorkerSet"):
        parts = item["spec"]["leaderWorkerTemplate"]
        for part in ("leaderTemplate", "workerTemplate"):
            metadata = {**parts[part]["metadata"], "name": f"{part.lower()}"}
            known.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": parts[part]["spec"]})
    return known


def kubernetes_validate(server: str, files: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [*validator("kubernetes-validate"), "--strict", "-k", server, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("server", SERVERS)
def test_every_object_is_valid_for_the_server(server: str, tmp_path: Path) -> None:
    """A kind without a schema only warns there, so a warning fails too."""
    files = []
    for name, values in RENDERINGS.items():
        rendered = render(values, "--kube-version", f"{server}.0")
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump_all(as_kubernetes_knows(rendered)))
    done = kubernetes_validate(server, files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


MANIFESTS = sorted((CHART / "examples" / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("server", SERVERS)
def test_manifests_beside_the_examples_are_valid(server: str) -> None:
    done = kubernetes_validate(server, MANIFESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


def test_the_store_on_s3_is_the_one_the_cluster_asks_for_and_acknowledges_nothing_early() -> None:
    documents = [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]
    by_kind = {document["kind"]: document for document in documents}
    store, secret = by_kind["StorageClass"], by_kind["Secret"]
    claim = render(RENDERINGS["cluster"]).get("PersistentVolumeClaim/store")
    assert claim and claim["spec"]["storageClassName"] == store["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert set(store["parameters"].values()) == {secret["metadata"]["name"], secret["metadata"]["namespace"]}
    assert not [option for option in store["mountOptions"] if option.startswith("writeback")]


def test_the_validator_finds_what_is_wrong(tmp_path: Path) -> None:
    """The control: one field too many in one object."""
    objects = as_kubernetes_knows(render(BASE))
    next(o for o in objects if o["kind"] == "StatefulSet")["spec"]["replica"] = 1
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump_all(objects))
    assert kubernetes_validate("1.33", [tmp_path / "bad.yaml"]).returncode == 1


@pytest.mark.parametrize("name", RENDERINGS)
def test_foreign_kinds_hold_only_what_their_schemas_know(name: str) -> None:
    for item in render(RENDERINGS[name]).of_kind(*CRDS):
        jsonschema.validate(item, CRDS[item["kind"]])


MONITOR: Object = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "ServiceMonitor",
    "metadata": {"name": "m"},
    "spec": {"selector": {"matchLabels": {"a": "b"}}, "endpoints": [{"port": "http", "interval": "15s"}]},
}
RULE: Object = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PrometheusRule",
    "metadata": {"name": "r"},
    "spec": {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up == 0", "for": "5m"}]}]},
}
MISTAKES: dict[str, list[tuple[str, Any]]] = {
    "Certificate": [("spec.noSuchField", 1), ("spec.issuerRef.name", None), ("spec.privateKey.algorithm", "DSA")],
    "HTTPRoute": [
        ("spec.noSuchField", 1),
        ("spec.rules.0.timeouts.request", "5 minutes"),
        ("spec.rules.0.matches.0.path.type", "Glob"),
        ("spec.rules.0.backendRefs.0.port", "http"),
    ],
    "LeaderWorkerSet": [
        ("spec.noSuchField", 1),
        ("spec.leaderWorkerTemplate.restartPolicy", "Always"),
        ("spec.leaderWorkerTemplate.size", 0),
        ("spec.leaderWorkerTemplate.workerTemplate", None),
    ],
    "PrometheusRule": [
        ("spec.noSuchField", 1),
        ("spec.groups.0.rules.0.expr", None),
        ("spec.groups.0.rules.0.for", "soon"),
        ("spec.groups.0.rules.0.severity", "page"),
    ],
    "ScaledObject": [
        ("spec.noSuchField", 1),
        ("spec.maxReplicaCount", "many"),
        ("spec.triggers.0.metadata", None),
        ("spec.scaleTargetRef.name", None),
    ],
    "ServiceMonitor": [
        ("spec.noSuchField", 1),
        ("spec.selector", None),
        ("spec.endpoints.0.interval", "soon"),
        ("spec.endpoints.0.scheme", "ftp"),
    ],
}


def changed(item: Object, path: str, value: Any) -> Object:
    """A copy with `value` at `path`; None takes the field away."""
    copy: Object = json.loads(json.dumps(item))
    place: Any = copy
    *above, last = path.split(".")
    for part in above:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return copy


def test_every_foreign_kind_has_its_controls() -> None:
    assert MISTAKES.keys() == CRDS.keys()


@pytest.mark.parametrize("kind", sorted(CRDS))
def test_foreign_schemas_refuse_what_the_operator_would_not_take(kind: str) -> None:
    """The controls: each mistake alone makes an object invalid that is valid without."""
    item = (render(EVERYTHING).of_kind(kind) or [i for i in (MONITOR, RULE) if i["kind"] == kind])[0]
    jsonschema.validate(item, CRDS[kind])
    for path, value in MISTAKES[kind]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(item, path, value), CRDS[kind])


ACCEPTED: dict[str, tuple[str, str]] = {
    "CKV_K8S_21": ("*", "the namespace is the one of `helm install -n`"),
    "CKV_K8S_11": ("*", "CPU limits throttle compute threads and heartbeats; requests are set, memory is limited"),
    "CKV_K8S_35": (
        "scheduler",
        "redis-py takes one URL; it is in a Secret, and the container's environment is its own",
    ),
    "CKV_K8S_8": ("test", "the pod of `helm test` runs once"),
    "CKV_K8S_9": ("test", "the pod of `helm test` serves nothing"),
    "CKV2_K8S_6": ("test", "nothing connects to the pod of `helm test`"),
}
PINNED: dict[str, Any] = {
    "image": {"pullPolicy": "Always"},
    **{name: {"image": {"digest": DIGEST}} for name in ("gateway", "scheduler", "redis", "jaeger")},
    "poolDefaults": {"trainer": {"image": {"digest": DIGEST}}, "samplers": {"both": {"image": {"digest": DIGEST}}}},
}


def test_a_scanner_finds_only_what_is_accepted_for_a_reason(tmp_path: Path) -> None:
    """checkov over the laptop's values, with images pinned by digest."""
    rendered = render(merged(RENDERINGS["laptop"], PINNED))
    (tmp_path / "all.yaml").write_text(rendered.text)
    command = [*validator("checkov"), "--framework", "kubernetes", "-f", str(tmp_path / "all.yaml"), "-o", "json"]
    done = subprocess.run(
        [*command, "--quiet", "--skip-download"], capture_output=True, text=True, timeout=200, check=False
    )
    found = json.loads(done.stdout)["results"]["failed_checks"]
    unexpected = {
        (check["check_id"], check["check_name"], check["resource"])
        for check in found
        if (where := ACCEPTED.get(check["check_id"], ("none", ""))[0]) != "*"
        and not check["resource"].endswith(f"{FULLNAME}-{where}")
    }
    assert unexpected == set()
    assert {check["check_id"] for check in found} == ACCEPTED.keys(), "an exception that nothing needs any more"
