"""Values that are each right and do not fit together are refused, naming both and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.helm import CHART, at, example, merged, refusal, render
from tests.chart.switches import BASE, TRIGGERS

T, S = "pools.p.trainer", "pools.p.samplers.both"
NODE = example(CHART / "examples" / "one-8-gpu-node.yaml")

UNFIT: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "2 nodes * 4 gpusPerNode = 8 GPUs, but tensorParallel 2",
        [at(T, {"nodes": 2, "gpusPerNode": 4, "tensorParallel": 2})],
    ),
    ("3 nodes cannot share", [at(T, {"nodes": 3, "dataParallel": 2})]),
    ("leaderworkerset is for 2 or more nodes", [at(f"{T}.launcher", "leaderworkerset")]),
    (
        "pools.p.trainer.replicas: 2 trainers of 2 nodes each need launcher leaderworkerset",
        [at(T, {"replicas": 2, "nodes": 2, "dataParallel": 2})],
    ),
    ("pools.p.trainer.terminationGracePeriodSeconds: 90 is less", [at(f"{T}.terminationGracePeriodSeconds", 90)]),
    ("pools.p.trainer.terminationGracePeriodSeconds: 600 is less", [at(f"{T}.settings.drainSeconds", 900)]),
    ("gateway.terminationGracePeriodSeconds: 45 is less", [at("gateway.preStopSeconds", 60)]),
    ("samplers.both.terminationGracePeriodSeconds: 60 is less", [at(f"{S}.settings.drainSeconds", 300)]),
    ("/elsewhere does not lie under model.mountPath /models", [at("pools.p.model.path", "/elsewhere")]),
    ("pools.q.model.path: missing", [at("pools.q.baseModel", "x")]),
    ("gateway.autoscaling.triggers: KEDA needs", [at("gateway.autoscaling.kind", "keda")]),
    ("gateway.autoscaling.maxReplicas: 1 is below", [at("gateway.autoscaling", {"kind": "hpa", "maxReplicas": 1})]),
    (
        "samplers.both.autoscaling.maxReplicas: 1 is below",
        [at(f"{S}.autoscaling", {"kind": "keda", "maxReplicas": 1, "triggers": TRIGGERS})],
    ),
    (
        "samplers.both.autoscaling.prometheusUrl: missing",
        [at(f"{S}.autoscaling", {"kind": "keda", "queueAgeSeconds": 9})],
    ),
    ("samplers.both.autoscaling.queueAgeSeconds: autoscaling.kind", [at(f"{S}.autoscaling.queueAgeSeconds", 9)]),
    ("gateway.ingress.hosts", [at("gateway.ingress.enabled", True)]),
    ("gateway.httpRoute.parentRefs", [at("gateway.httpRoute.enabled", True)]),
    ("auth.existingSecret", [at("auth", {"existingSecret": "a", "pepper": "p" * 40})]),
    ("auth.keys: digests mean nothing without the pepper", [at("auth.keys", {"ab" * 32: {"tenantId": "t"}})]),
    ("redis.existingSecret holds the url", [at("redis", {"existingSecret": "a", "externalUrl": "redis://b"})]),
    ("redis.tlsSecret: the built-in Redis", [at("redis.tlsSecret", "a")]),
    ("tls.enabled: name the certificates", [at("tls.enabled", True)]),
    ("set one of tls.existingSecret", [at("tls", {"existingSecret": "a", "certManager": {"issuer": "b"}})]),
    ("test.pool", [at("test.pool", "other")]),
    (
        "has more than 52 characters",
        [at("fullnameOverride", "a" * 40), at("pools", {"a-pool-with-a-long-name": {"model": {"path": "/m"}}})],
    ),
]


@pytest.mark.parametrize(("said", "values"), UNFIT, ids=lambda part: part[:50] if isinstance(part, str) else "")
def test_values_that_do_not_fit_together_are_refused(said: str, values: list[dict[str, Any]]) -> None:
    assert said in refusal(merged(BASE, *values))


Q = "pools.qwen3-30b-a3b"
UNEVEN = {
    "take 9 (pools.qwen3-30b-a3b.trainer 4, pools.qwen3-30b-a3b.samplers.both 5); take fewer": at(
        f"{Q}.samplers.both.replicas", 5
    ),
    "the node has 8, the pools take 7": at(f"{Q}.samplers.both.replicas", 3),
    "take 12 (pools.qwen3-30b-a3b.trainer 8, pools.qwen3-30b-a3b.samplers.both 4); take fewer": at(
        f"{Q}.trainer.replicas", 2
    ),
    "the node has 4": at("singleNode.gpus", 4),
    "pools.qwen3-30b-a3b.trainer.nodes: 2, but singleNode": at(f"{Q}.trainer", {"nodes": 2, "gpusPerNode": 2}),
    "the pools take 12": at(f"{Q}.samplers.both.autoscaling", {"kind": "hpa", "maxReplicas": 8}),
}


@pytest.mark.parametrize(
    ("said", "values"), UNEVEN.items(), ids=lambda part: part[:20] if isinstance(part, str) else ""
)
def test_the_gpus_of_a_single_node_must_add_up(said: str, values: dict[str, Any]) -> None:
    """singleNode.gpus"""
    assert said in refusal(merged(NODE, values))


def test_a_split_that_adds_up_is_taken() -> None:
    split = {
        "trainer": {"gpusPerNode": 6, "tensorParallel": 2, "dataParallel": 3},
        "samplers": {"both": {"replicas": 2}},
    }
    rendered = render(merged(NODE, at("pools.qwen3-30b-a3b", split)))
    limits = rendered.get("StatefulSet/trainer-qwen3-30b-a3b")["spec"]["template"]["spec"]["containers"][0]["resources"]  # type: ignore[index]
    assert limits["limits"]["nvidia.com/gpu"] == "6"
