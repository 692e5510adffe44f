"""vLLM's own metrics, for the sampler's endpoint.

They lie in prometheus_client's global registry. Of their labels `model_name` is a path of this machine, and one
gauge bears names of adapters, which are ids without a bound: neither is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

PREFIX = "vllm:"
LEFT_OUT = frozenset({"vllm:lora_requests_info", "vllm:cache_config_info"})
PASSED_ON = frozenset(
    {"engine", "le", "finished_reason", "reason", "stage", "source", "sleep_state", "status", "position"}
)


class VllmMetrics:
    """Implements common.metrics.Source."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if family.name.startswith(PREFIX) and family.name not in LEFT_OUT:
                yield _without_names(family)


def _without_names(family: Metric) -> Metric:
    shown = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            labels = {name: value for name, value in sample.labels.items() if name in PASSED_ON}
            shown.samples.append(Sample(sample.name, labels, sample.value, None, None))
    return shown
