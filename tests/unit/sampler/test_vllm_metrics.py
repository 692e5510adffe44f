"""vLLM's metrics are passed on without the labels that name a path or an adapter."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.common.metrics import MetricSet, exposition
from services.sampler.engine.vllm_metrics import VllmMetrics
from tests.doubles.scrape import Scrape

PATH = "/home/someone/models/m"


def shown() -> Scrape:
    registry = CollectorRegistry()
    names = ["model_name", "engine"]
    Counter("vllm:prompt_tokens", "Tokens.", names, registry=registry).labels(PATH, "0").inc(7)
    Histogram("vllm:ttft_seconds", "Time.", names, registry=registry, buckets=[1.0]).labels(PATH, "0").observe(0.5)
    Gauge("vllm:lora_requests_info", "Adapters.", ["running_lora_adapters"], registry=registry).labels("a#2").set(1)
    Counter("foreign", "Not vLLM's.", registry=registry).inc()
    made = MetricSet("tinkermesh_test")
    made.add_source(VllmMetrics(registry))
    return Scrape(exposition((made,)).decode())


def test_values_arrive_under_vllm_s_names() -> None:
    found = shown()
    assert found.values("vllm:prompt_tokens_total", engine="0") == [7.0]
    assert found.values("vllm:ttft_seconds_bucket", engine="0", le="1.0") == [1.0]


def test_no_path_no_adapter_and_nothing_foreign_is_shown() -> None:
    text = shown().text
    for word in (PATH, "model_name", "a#2", "lora_requests_info", "foreign"):
        assert word not in text
