"""Every switch of the chart, and where its value must arrive.

A row says: with `value` at `path` (and `given` beside it), `where` in the rendering is `expected`, and without it is
not.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chart.helm import Rendered, at, merged

DIGEST = "sha256:" + "0123456789abcdef" * 4
PEPPER = "p" * 40
KEY = "ab" * 32
LABEL = {"example.com/team": "gulls"}
TOLERATIONS = [{"key": "gpu", "operator": "Exists"}]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
ENV = [{"name": "PLANTED", "value": "1"}]
PEERS = [{"podSelector": {"matchLabels": LABEL}}]
TRIGGERS = [{"type": "cron", "metadata": {"timezone": "UTC"}}]

POD = "spec.template.spec"
FIRST = f"{POD}.containers.0"
ABSENT = object()

BASE: dict[str, Any] = {
    "pools": {
        "p": {"model": {"path": "/models/m", "volume": {"persistentVolumeClaim": {"claimName": "models"}}}},
    }
}
NODES = {"pools": {"p": {"trainer": {"nodes": 2, "dataParallel": 2}}}}
LEGS = {"pools": {"p": {"samplers": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}}}}
GATEWAY_HPA = {"gateway": {"autoscaling": {"kind": "hpa"}}}
GATEWAY_KEDA = {"gateway": {"autoscaling": {"kind": "keda", "triggers": TRIGGERS}}}


@dataclass(frozen=True)
class Switch:
    path: str
    value: Any
    where: str
    """`Kind/name:path.in.it`; empty path = whether the object is there; \\. is a dot inside a key."""
    expected: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, Any] = field(default_factory=dict)
    """What stands in its place where one of two is needed, in the rendering without it."""

    def seen(self, rendered: Rendered) -> Any:
        key, _, path = self.where.partition(":")
        found: Any = rendered.get(key)
        if not path:
            return found is not None
        for part in path.replace("\\.", "\0").split("."):
            part = part.replace("\0", ".")
            if isinstance(found, list):
                found = found[int(part)] if int(part) < len(found) else ABSENT
            elif isinstance(found, dict):
                found = found.get(part, ABSENT)
            else:
                return ABSENT
        return found

    def holds(self, rendered: Rendered) -> bool:
        seen = self.seen(rendered)
        if isinstance(self.expected, Callable):  # type: ignore[arg-type]
            return bool(self.expected(seen))
        return bool(seen == self.expected)


def contains(wanted: Any) -> Callable[[Any], bool]:
    """In a list or text; of a map, all its items."""

    def check(seen: Any) -> bool:
        if isinstance(wanted, dict) and isinstance(seen, dict):
            return wanted.items() <= seen.items()
        return seen is not ABSENT and seen is not None and wanted in seen

    return check


def in_base64(wanted: str) -> Callable[[Any], bool]:
    return lambda seen: isinstance(seen, str) and wanted in base64.b64decode(seen).decode()


def absent(seen: Any) -> bool:
    return seen is ABSENT


def _pod(prefix: str, workload: str, *, given: Mapping[str, Any] = {}, env: bool = True) -> list[Switch]:  # noqa: B006
    """What every pod's values have; `workload` is Kind/name."""

    def row(name: str, value: Any, where: str, expected: Any) -> Switch:
        return Switch(f"{prefix}.{name}", value, f"{workload}:{where}", expected, given)

    rows = [
        row("resources.requests", {"cpu": "123m"}, f"{FIRST}.resources.requests.cpu", "123m"),
        row("resources.limits", {"memory": "123Mi"}, f"{FIRST}.resources.limits.memory", "123Mi"),
        row("nodeSelector", {"disk": "fast"}, f"{POD}.nodeSelector", {"disk": "fast"}),
        row("tolerations", TOLERATIONS, f"{POD}.tolerations", TOLERATIONS),
        row("affinity", AFFINITY, f"{POD}.affinity", AFFINITY),
        row("priorityClassName", "urgent", f"{POD}.priorityClassName", "urgent"),
        row("podAnnotations", LABEL, "spec.template.metadata.annotations", contains(LABEL)),
        row("podLabels", LABEL, "spec.template.metadata.labels", contains(LABEL)),
        row("terminationGracePeriodSeconds", 901, f"{POD}.terminationGracePeriodSeconds", 901),
    ]
    return [*rows, row("extraEnv", ENV, f"{FIRST}.env", contains(ENV[0]))] if env else rows


def _image(
    prefix: str,
    workload: str,
    registry: str = "localhost/",
    given: Mapping[str, Any] = {},  # noqa: B006
) -> list[Switch]:
    where = f"{workload}:{FIRST}.image"
    return [
        Switch(f"{prefix}.image.repository", "other/name", where, contains(f"{registry}other/name:"), given),
        Switch(f"{prefix}.image.digest", DIGEST, where, contains(f"@{DIGEST}"), given),
    ]


def _spread(prefix: str, workload: str, given: Mapping[str, Any] = {}) -> list[Switch]:  # noqa: B006
    where = f"{workload}:{POD}.topologySpreadConstraints.0"
    values = {"topologyKey": "zone", "maxSkew": 3, "whenUnsatisfiable": "DoNotSchedule"}
    return [
        Switch(f"{prefix}.topologySpread.{name}", value, f"{where}.{name}", value, given)
        for name, value in values.items()
    ]


def _budget(prefix: str, name: str, given: Mapping[str, Any]) -> list[Switch]:
    budget = f"PodDisruptionBudget/{name}"
    return [
        Switch(f"{prefix}.podDisruptionBudget.enabled", False, f"{budget}:", False, given),
        Switch(f"{prefix}.podDisruptionBudget.maxUnavailable", 2, f"{budget}:spec.maxUnavailable", 2, given),
    ]


def _autoscaling(
    prefix: str,
    name: str,
    hpa: Mapping[str, Any],
    keda: Mapping[str, Any],
    given: Mapping[str, Any] = {},  # noqa: B006
) -> list[Switch]:
    own, scaler = f"HorizontalPodAutoscaler/{name}", f"ScaledObject/{name}"
    metric = {"type": "Pods", "pods": {"metric": {"name": "queue"}}}
    return [
        Switch(f"{prefix}.autoscaling.kind", "hpa", f"{own}:", True, given),
        Switch(f"{prefix}.autoscaling.minReplicas", 4, f"{own}:spec.minReplicas", 4, hpa),
        Switch(f"{prefix}.autoscaling.maxReplicas", 9, f"{scaler}:spec.maxReplicaCount", 9, keda),
        Switch(
            f"{prefix}.autoscaling.targetCPUUtilizationPercentage",
            55,
            f"{own}:spec.metrics.0.resource.target.averageUtilization",
            55,
            hpa,
        ),
        Switch(f"{prefix}.autoscaling.metrics", [metric], f"{own}:spec.metrics", contains(metric), hpa),
        Switch(
            f"{prefix}.autoscaling.triggers",
            [{"type": "cpu"}],
            f"{scaler}:spec.triggers",
            [{"type": "cpu"}],
            keda,
        ),
    ]


GATEWAY = "Deployment/gateway"
SCHEDULER = "Deployment/scheduler"
REDIS = "StatefulSet/redis"
TRAINER = "StatefulSet/trainer-p"
SAMPLER = "Deployment/sampler-p"
P = "pools.*"
T = f"{P}.trainer"
HOST_MEMORY = {"hostPath": {"path": "/mnt/kv", "type": "Directory"}}
INGRESS = {"gateway": {"ingress": {"enabled": True, "hosts": ["a.example.com"]}}}
ROUTE = {"gateway": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}}
ISSUED = {"tls": {"certManager": {"issuer": "mesh"}}}
TLS = {"tls": {"enabled": True, "certManager": {"issuer": "mesh"}}}
TLS_ON = {"tls": {"enabled": True}}
TLS_VOLUME = {"name": "tls", "secret": {"secretName": "mine", "defaultMode": 0o440}}
MONITORED = {"metrics": {"serviceMonitor": {"create": "always"}, "prometheusRule": {"create": "always"}}}
JAEGER = {"jaeger": {"enabled": True}}
QUEUE_AGE = {
    "metric": {
        "name": "tinkermesh_pool_queue_age_seconds",
        "selector": {"matchLabels": {"pool": "p", "path": "sample"}},
    },
    "target": {"type": "Value", "value": "20"},
}


def _samplers(role: str, given: Mapping[str, Any]) -> list[Switch]:
    """Of one role: its Deployment has the same values as every other."""
    prefix, name = f"{P}.samplers.{role}", "sampler-p" if role == "both" else f"sampler-p-{role}"
    workload = f"Deployment/{name}"

    def with_own(values: dict[str, Any]) -> dict[str, Any]:
        return merged(given, at(f"pools.p.samplers.{role}", values))

    hpa = with_own({"autoscaling": {"kind": "hpa"}})
    keda = with_own({"autoscaling": {"kind": "keda", "triggers": TRIGGERS}})
    return [
        Switch(f"{prefix}.replicas", 5, f"{workload}:spec.replicas", 5, given),
        Switch(f"{prefix}.gpus", 1, f"{workload}:{FIRST}.resources.limits.nvidia\\.com/gpu", "1", given),
        Switch(f"{prefix}.startupSeconds", 100, f"{workload}:{FIRST}.startupProbe.failureThreshold", 20, given),
        Switch(f"{prefix}.sharedMemory", "3Gi", f"{workload}:{POD}.volumes.2.emptyDir.sizeLimit", "3Gi", given),
        Switch(f"{prefix}.runtimeClassName", "nvidia", f"{workload}:{POD}.runtimeClassName", "nvidia", given),
        *_autoscaling(prefix, name, hpa, keda, given),
        *_queue_age(prefix, name, role, hpa, keda),
        *_budget(prefix, name, with_own({"replicas": 3})),
        *_spread(prefix, workload, given),
        *_image(prefix, workload, given=given),
        *_pod(prefix, workload, given=given),
    ]


def _queue_age(prefix: str, name: str, role: str, hpa: Mapping[str, Any], keda: Mapping[str, Any]) -> list[Switch]:
    own = f"pools.p.samplers.{role}.autoscaling"
    trigger = {
        "serverAddress": "http://p:9090",
        "query": 'max(tinkermesh_pool_queue_age_seconds{pool="p",path="sample"})',
        "threshold": "20",
    }
    return [
        Switch(
            f"{prefix}.autoscaling.queueAgeSeconds",
            20,
            f"HorizontalPodAutoscaler/{name}:spec.metrics",
            contains({"type": "External", "external": QUEUE_AGE}),
            hpa,
        ),
        Switch(
            f"{prefix}.autoscaling.prometheusUrl",
            "http://p:9090",
            f"ScaledObject/{name}:spec.triggers.0.metadata",
            trigger,
            merged(keda, at(f"{own}.queueAgeSeconds", 20)),
            at(f"{own}.prometheusUrl", "http://elsewhere"),
        ),
    ]


RELEASE = [
    Switch("nameOverride", "mesh", "Deployment/=t-mesh-gateway:metadata.labels.app\\.kubernetes\\.io/name", "mesh"),
    Switch("fullnameOverride", "mesh", "Deployment/=mesh-gateway:", True),
    Switch("commonLabels", LABEL, f"{SCHEDULER}:metadata.labels", contains(LABEL)),
    Switch("image.registry", "registry.example.com/x", f"{TRAINER}:{FIRST}.image", contains("registry.example.com/x/")),
    Switch("image.tag", "9.9.9", f"{GATEWAY}:{FIRST}.image", contains(":9.9.9")),
    Switch("image.pullPolicy", "Always", f"{SAMPLER}:{FIRST}.imagePullPolicy", "Always"),
    Switch("image.pullSecrets", [{"name": "pull"}], f"{REDIS}:{POD}.imagePullSecrets", [{"name": "pull"}]),
    Switch("serviceAccount.create", False, "ServiceAccount/:", False),
    Switch("serviceAccount.name", "someone", f"{TRAINER}:{POD}.serviceAccountName", "someone"),
    Switch("serviceAccount.annotations", LABEL, "ServiceAccount/:metadata.annotations", LABEL),
]
STATE = [
    Switch("auth.existingSecret", "mine", f"{GATEWAY}:{POD}.volumes.0.secret.secretName", "mine"),
    Switch(
        "auth.pepper", PEPPER, "Secret/auth:data.pepper", "cHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcA=="
    ),
    Switch(
        "auth.keys",
        {KEY: {"tenantId": "t1", "label": "gull"}},
        "Secret/auth:data.keys\\.json",
        in_base64(KEY),
        {"auth": {"pepper": PEPPER}},
    ),
    Switch("store.existingClaim", "mine", f"{SCHEDULER}:{POD}.volumes.1.persistentVolumeClaim.claimName", "mine"),
    Switch("store.storageClassName", "nfs", "PersistentVolumeClaim/store:spec.storageClassName", "nfs"),
    Switch("store.accessMode", "ReadWriteOnce", "PersistentVolumeClaim/store:spec.accessModes", ["ReadWriteOnce"]),
    Switch("store.size", "7Gi", "PersistentVolumeClaim/store:spec.resources.requests.storage", "7Gi"),
    Switch("store.keep", False, "PersistentVolumeClaim/store:metadata.annotations", absent),
    Switch("redis.externalUrl", "redis://r:1/0", "Secret/redis:data.url", "cmVkaXM6Ly9yOjEvMA=="),
    Switch("redis.existingSecret", "mine", f"{SCHEDULER}:{FIRST}.env.3.valueFrom.secretKeyRef.name", "mine"),
    Switch(
        "redis.tlsSecret",
        "mine",
        f"{SCHEDULER}:{POD}.volumes",
        contains({"name": "redis-tls", "secret": {"secretName": "mine", "defaultMode": 0o440}}),
        {"redis": {"existingSecret": "url"}},
    ),
    Switch("redis.image.tag", "9", f"{REDIS}:{FIRST}.image", contains(":9")),
    Switch("redis.maxMemory", "5gb", f"{REDIS}:{FIRST}.args", contains("5gb")),
    Switch("redis.persistence.storageClassName", "-", f"{REDIS}:spec.volumeClaimTemplates.0.spec.storageClassName", ""),
    Switch(
        "redis.persistence.size", "3Gi", f"{REDIS}:spec.volumeClaimTemplates.0.spec.resources.requests.storage", "3Gi"
    ),
    *_image("redis", REDIS, ""),
    *_pod("redis", REDIS, env=False),
]
FRONT = [
    Switch("gateway.replicas", 5, f"{GATEWAY}:spec.replicas", 5),
    Switch("gateway.publicUrl", "https://a.b", "ConfigMap/gateway:data.TINKERMESH_GATEWAY_PUBLIC_URL", "https://a.b"),
    Switch("gateway.service.type", "NodePort", "Service/gateway:spec.type", "NodePort"),
    Switch("gateway.service.port", 8080, "Service/gateway:spec.ports.0.port", 8080),
    Switch("gateway.service.annotations", LABEL, "Service/gateway:metadata.annotations", LABEL),
    Switch(
        "gateway.ingress.enabled",
        True,
        "Ingress/gateway:",
        True,
        {"gateway": {"ingress": {"hosts": ["a.example.com"]}}},
    ),
    Switch("gateway.ingress.className", "nginx", "Ingress/gateway:spec.ingressClassName", "nginx", INGRESS),
    Switch("gateway.ingress.annotations", LABEL, "Ingress/gateway:metadata.annotations", LABEL, INGRESS),
    Switch("gateway.ingress.hosts", ["b"], "Ingress/gateway:spec.rules.0.host", "b", INGRESS),
    Switch(
        "gateway.ingress.tls",
        [{"hosts": ["b"], "secretName": "c"}],
        "Ingress/gateway:spec.tls",
        [{"hosts": ["b"], "secretName": "c"}],
        INGRESS,
    ),
    Switch(
        "gateway.httpRoute.enabled",
        True,
        "HTTPRoute/gateway:",
        True,
        {"gateway": {"httpRoute": {"parentRefs": [{"name": "public"}]}}},
    ),
    Switch("gateway.httpRoute.annotations", LABEL, "HTTPRoute/gateway:metadata.annotations", LABEL, ROUTE),
    Switch(
        "gateway.httpRoute.parentRefs", [{"name": "x"}], "HTTPRoute/gateway:spec.parentRefs", [{"name": "x"}], ROUTE
    ),
    Switch("gateway.httpRoute.hostnames", ["b"], "HTTPRoute/gateway:spec.hostnames", ["b"], ROUTE),
    Switch("gateway.httpRoute.requestTimeout", "5m", "HTTPRoute/gateway:spec.rules.0.timeouts.request", "5m", ROUTE),
    Switch("gateway.preStopSeconds", 9, f"{GATEWAY}:{FIRST}.lifecycle.preStop.exec.command", ["sleep", "9"]),
    *_autoscaling("gateway", "gateway", GATEWAY_HPA, GATEWAY_KEDA),
    *_budget("gateway", "gateway", {}),
    *_spread("gateway", GATEWAY),
    *_image("gateway", GATEWAY),
    *_pod("gateway", GATEWAY),
    Switch("scheduler.replicas", 5, f"{SCHEDULER}:spec.replicas", 5),
    *_budget("scheduler", "scheduler", {}),
    *_spread("scheduler", SCHEDULER),
    *_image("scheduler", SCHEDULER),
    *_pod("scheduler", SCHEDULER),
]
_TRAINER_MAP = "ConfigMap/trainer-p:data.TINKERMESH_TRAINER_"
_SAMPLER_MAP = "ConfigMap/sampler-p:data.TINKERMESH_SAMPLER_"
POOLS = [
    Switch(f"{P}.baseModel", "a/b", f"{_TRAINER_MAP}BASE_MODEL", "a/b"),
    Switch(f"{P}.aliases", ["a", "b"], f"{_SAMPLER_MAP}ALIASES", "a,b"),
    Switch(f"{P}.maxContext", 4096, f"{_SAMPLER_MAP}MAX_CONTEXT", "4096"),
    Switch(f"{P}.maxRank", 64, f"{_TRAINER_MAP}MAX_RANK", "64"),
    Switch(f"{P}.model.path", "/models/n", f"{_TRAINER_MAP}MODEL_PATH", "/models/n"),
    Switch(
        f"{P}.model.volume",
        {"persistentVolumeClaim": {"claimName": "others"}},
        f"{TRAINER}:{POD}.volumes.3.persistentVolumeClaim.claimName",
        "others",
    ),
    Switch(
        f"{P}.model.mountPath",
        "/m",
        f"{SAMPLER}:{FIRST}.volumeMounts.3.mountPath",
        "/m",
        {"pools": {"p": {"model": {"path": "/m/x", "mountPath": "/m/x"}}}},
    ),
    Switch(f"{P}.model.subPath", "sub", f"{TRAINER}:{FIRST}.volumeMounts.3.subPath", "sub"),
    Switch(f"{T}.launcher", "leaderworkerset", "LeaderWorkerSet/trainer-p:spec.leaderWorkerTemplate.size", 2, NODES),
    Switch(f"{T}.replicas", 3, f"{TRAINER}:spec.replicas", 3),
    Switch(f"{T}.nodes", 2, f"{TRAINER}:spec.replicas", 2, {"pools": {"p": {"trainer": {"dataParallel": 2}}}}),
    Switch(f"{T}.gpusPerNode", 1, f"{TRAINER}:{FIRST}.resources.limits.nvidia\\.com/gpu", "1"),
    Switch(f"{T}.tensorParallel", 2, f"{_TRAINER_MAP}TP", "2"),
    Switch(f"{T}.dataParallel", 2, f"{_TRAINER_MAP}DP", "2"),
    Switch(f"{T}.startupSeconds", 100, f"{TRAINER}:{FIRST}.startupProbe.failureThreshold", 20),
    Switch(f"{T}.sharedMemory", "3Gi", f"{TRAINER}:{POD}.volumes.2.emptyDir.sizeLimit", "3Gi"),
    Switch(f"{T}.runtimeClassName", "nvidia", f"{TRAINER}:{POD}.runtimeClassName", "nvidia"),
    *_spread(T, TRAINER),
    *_image(T, TRAINER),
    *_pod(T, TRAINER),
    Switch(
        f"{P}.tier.volume",
        HOST_MEMORY,
        f"Deployment/sampler-p-decode:{POD}.volumes",
        contains({"name": "tier", **HOST_MEMORY}),
        LEGS,
    ),
    Switch(
        f"{P}.tier.hashSeed",
        4_123_456_789,
        "ConfigMap/sampler-p-prefill:data.TINKERMESH_SAMPLER_KV_HASH_SEED",
        "4123456789",
        LEGS,
    ),
    *_samplers("both", {}),
    *_samplers("prefill", LEGS),
    *_samplers("decode", LEGS),
]
AROUND = [
    Switch("singleNode.hostname", "n1", f"{TRAINER}:{POD}.nodeSelector.kubernetes\\.io/hostname", "n1"),
    Switch("networkPolicy.enabled", False, "NetworkPolicy/scheduler:", False),
    Switch("networkPolicy.gatewayFrom", PEERS, "NetworkPolicy/gateway:spec.ingress.0.from", contains(PEERS[0])),
    Switch("networkPolicy.operatorsFrom", PEERS, "NetworkPolicy/trainer:spec.ingress.0.from", contains(PEERS[0])),
    Switch("networkPolicy.metricsFrom", PEERS, "NetworkPolicy/sampler:spec.ingress.1.from", PEERS),
    Switch("metrics.enabled", False, "Service/gateway-metrics:", False),
    Switch("metrics.port", 9999, "ConfigMap/trainer-p:data.TINKERMESH_TRAINER_METRICS_LISTEN", "0.0.0.0:9999"),
    Switch("metrics.serviceMonitor.create", "always", "ServiceMonitor/:", True),
    Switch("metrics.serviceMonitor.interval", "7s", "ServiceMonitor/:spec.endpoints.0.interval", "7s", MONITORED),
    Switch("metrics.serviceMonitor.labels", LABEL, "ServiceMonitor/:metadata.labels", contains(LABEL), MONITORED),
    Switch("metrics.prometheusRule.create", "always", "PrometheusRule/:", True),
    Switch("metrics.prometheusRule.labels", LABEL, "PrometheusRule/:metadata.labels", contains(LABEL), MONITORED),
    Switch("metrics.dashboard.enabled", False, "ConfigMap/dashboard:", False),
    Switch("metrics.dashboard.labels", LABEL, "ConfigMap/dashboard:metadata.labels", contains(LABEL)),
    Switch("metrics.dashboard.annotations", LABEL, "ConfigMap/dashboard:metadata.annotations", LABEL),
    Switch("tls.enabled", True, f"{SAMPLER}:{FIRST}.readinessProbe.exec.command.2", "services.common.probe", ISSUED),
    Switch(
        "tls.existingSecret",
        "mine",
        f"{GATEWAY}:{POD}.volumes",
        contains(TLS_VOLUME),
        {"tls": {"enabled": True}},
        ISSUED,
    ),
    Switch("tls.serverName", "mesh-b", "Certificate/tls:spec.dnsNames", ["mesh-b"], TLS),
    Switch(
        "tls.certManager.issuer",
        "ca",
        "Certificate/tls:",
        True,
        {"tls": {"enabled": True}},
        {"tls": {"existingSecret": "x"}},
    ),
    Switch("tls.certManager.kind", "ClusterIssuer", "Certificate/tls:spec.issuerRef.kind", "ClusterIssuer", TLS),
    Switch("tls.certManager.duration", "99h", "Certificate/tls:spec.duration", "99h", TLS),
    Switch("tls.certManager.renewBefore", "9h", "Certificate/tls:spec.renewBefore", "9h", TLS),
    Switch(
        "tracing.endpoint",
        "http://c:4317",
        f"{TRAINER}:{FIRST}.env",
        contains({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4317"}),
    ),
    Switch(
        "jaeger.enabled",
        True,
        f"{SAMPLER}:{FIRST}.env",
        contains({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://t-tinkermesh-jaeger.mesh.svc:4317"}),
    ),
    Switch("jaeger.image.repository", "x/y", f"Deployment/jaeger:{FIRST}.image", contains("x/y:"), JAEGER),
    Switch("jaeger.image.tag", "9", f"Deployment/jaeger:{FIRST}.image", contains(":9"), JAEGER),
    Switch("jaeger.image.digest", DIGEST, f"Deployment/jaeger:{FIRST}.image", contains(DIGEST), JAEGER),
    Switch("jaeger.resources.requests", {"cpu": "9"}, f"Deployment/jaeger:{FIRST}.resources.requests.cpu", "9", JAEGER),
    Switch(
        "jaeger.resources.limits", {"memory": "9"}, f"Deployment/jaeger:{FIRST}.resources.limits.memory", "9", JAEGER
    ),
    Switch("test.enabled", False, "Pod/test:", False),
    Switch(
        "test.pool",
        "q",
        "Pod/test:spec.containers.0.env",
        contains({"name": "POOL", "value": "q"}),
        {"pools": {"q": {"model": {"path": "/models/q"}}}},
    ),
    Switch("test.timeoutSeconds", 77, "Pod/test:spec.activeDeadlineSeconds", 107),
]
SWITCHES = [*RELEASE, *STATE, *FRONT, *POOLS, *AROUND]
REFUSES = {"singleNode.gpus"}
"""Paths that change no object: they refuse what does not add up (test_fit.py)."""
