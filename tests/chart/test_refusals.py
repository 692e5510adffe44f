"""A wrong value is refused with its path, by both helm versions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.helm import at, binary, merged, refusal
from tests.chart.switches import BASE

WRONG: list[tuple[str, Any]] = [
    ("gateway.replicas", -1),
    ("gateway.replicas", "two"),
    ("gateway.service.type", "Cluster"),
    ("gateway.service.port", 70000),
    ("gateway.publicUrl", "tinker.example.com"),
    ("gateway.autoscaling.kind", "vpa"),
    ("gateway.httpRoute.requestTimeout", "1 minute"),
    ("gateway.httpRoute.parentRefs", [{"namespace": "x"}]),
    ("gateway.settings.longPollSeconds", "long"),
    ("gateway.settings.listen", "0.0.0.0:80"),
    ("scheduler.settings.durability", "lax"),
    ("scheduler.settings.samplers", False),
    ("image.pullPolicy", "Sometimes"),
    ("image.registry", "https://registry.example.com/"),
    ("redis.externalUrl", "http://redis"),
    ("redis.maxMemory", "lots"),
    ("redis.image.digest", "sha256:abc"),
    ("auth.pepper", "short"),
    ("auth.keys", {"not-a-digest": {"tenantId": "t"}}),
    ("auth.keys", {"ab" * 32: {"label": "nobody's"}}),
    ("store.accessMode", "ReadOnlyMany"),
    ("store.size", "100 GB"),
    ("store.s3", {"bucket": "b"}),
    ("pools.p.trainer.nodes", 0),
    ("pools.p.trainer.launcher", "job"),
    ("pools.p.trainer.settings.ep", 8),
    ("pools.p.trainer.expertParallel", 8),
    ("pools.p.samplers.prefill.replicas", -1),
    ("pools.p.samplers.encode", {"replicas": 1}),
    ("pools.p.tier.directory", "/kv"),
    ("pools.p.samplers.both.gpus", 2),
    ("pools.p.model.path", "models/m"),
    ("pools.p.model.volume", {"nfs": {}, "emptyDir": {}}),
    ("pools.p.baseModel", "a,b"),
    ("pools.Capital", {}),
    ("singleNode.gpus", "eight"),
    ("networkPolicy.enabled", "yes"),
    ("tracing.endpoint", "collector:4317"),
    ("metrics.serviceMonitor.enabled", True),
]


# Both read the same schema, with libraries of their own: every sixth is enough for the older.
CASES = [("helm4", *row) for row in WRONG] + [("helm3", *row) for row in WRONG[::6]]


@pytest.mark.parametrize(("helm", "path", "value"), CASES, ids=lambda part: str(part)[:40])
def test_a_wrong_value_is_refused_with_its_path(helm: str, path: str, value: Any) -> None:
    binary(helm)
    said = refusal(merged(BASE, at(path, value)), helm)
    *above, name = path.split(".")
    inside = f"/{'/'.join(above)}" in said or f"{'.'.join(above)}" in said
    assert (inside and name in said) or above[0] in said, said


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = refusal(merged(BASE, at("gateway.replicas", -1), at("redis.maxMemory", "lots")))
    assert "/gateway/replicas" in said
    assert "/redis/maxMemory" in said
