"""Prometheus metrics: sets of them, one per service, and what all services count alike.

Every label takes its values from a small fixed set (or from the pools of the mesh, which the operator names), so the
number of series has a bound that no client can move. Ids, keys, paths and tenants never are labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, which nothing here reads

Kind = Literal["counter", "gauge", "histogram"]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric as docs/metrics.md lists it; `name` as it is queried."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


class Source(Protocol):
    """Metrics that are made at each scrape, from what is in memory already."""

    def collect(self) -> Iterator[Metric]: ...


class MetricSet:
    """Metrics whose names begin with `prefix`. Declared once, at import."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """`name` ends with _total."""
        return Counter(self._declare(name, "counter", meaning, labels), meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(self._declare(name, "gauge", meaning, labels), meaning, labels, registry=self.registry)

    def histogram(
        self, name: str, meaning: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        full = self._declare(name, "histogram", meaning, labels)
        return Histogram(full, meaning, labels, registry=self.registry, buckets=buckets)

    def declare(self, name: str, kind: Kind, meaning: str, labels: Sequence[str] = ()) -> str:
        """Of a metric that a Source of this set yields; answers its full name."""
        return self._declare(name, kind, meaning, labels)

    def add_source(self, source: Source) -> None:
        self.registry.register(_Sourced(source))

    def _declare(self, name: str, kind: Kind, meaning: str, labels: Sequence[str]) -> str:
        full = f"{self.prefix}_{name}"
        self.declared.append(Declared(full, kind, tuple(labels), meaning))
        return full


class _Sourced(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect at the registration to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        return self._source.collect()


def known(value: str, allowed: Collection[str]) -> str:
    """`value` as a label, or "other"."""
    return value if value in allowed else OTHER


def exposition(sets: Sequence[MetricSet]) -> bytes:
    """What a scrape is answered, in the text format 0.0.4."""
    return b"".join(generate_latest(one.registry) for one in sets)


# ---- what all services count ---------------------------------------------------------------

COMMON = MetricSet("tinkermesh")
ProcessCollector(registry=COMMON.registry)
PROCESS = (
    Declared("process_cpu_seconds_total", "counter", (), "Processor time of the process."),
    Declared("process_resident_memory_bytes", "gauge", (), "Memory of the process that is in RAM."),
    Declared("process_virtual_memory_bytes", "gauge", (), "Address space of the process."),
    Declared("process_start_time_seconds", "gauge", (), "When the process started, Unix time."),
    Declared("process_open_fds", "gauge", (), "Open file descriptors."),
    Declared("process_max_fds", "gauge", (), "How many may be open."),
)

build_info = COMMON.gauge("build_info", "Always 1; which service and release this is.", ["service", "version"])
_grpc_requests = COMMON.counter(
    "grpc_requests_total", "Calls a gRPC server has answered, by method and outcome.", ["method", "code"]
)
_grpc_seconds = COMMON.histogram("grpc_seconds", "Time to answer a gRPC call; streams are not in it.", ["method"])
_grpc_open = COMMON.gauge("grpc_requests_open", "gRPC calls under way, streams too.", ["method"])


def short_method(method: str) -> str:
    """``Scheduler/Submit`` of ``/tinkermesh.v1.Scheduler/Submit``."""
    service, _, name = method.rpartition("/")
    return f"{service.rpartition('.')[2]}/{name}"


class Answered:
    """How a gRPC call ended."""

    code = "ok"


@contextmanager
def grpc_call(method: str, clock: Callable[[], float], *, stream: bool) -> Iterator[Answered]:
    """Counts the block as a call of `method`; the block sets `code` where it fails."""
    name, started, answered = short_method(method), clock(), Answered()
    opened = _grpc_open.labels(name)
    opened.inc()
    try:
        yield answered
    except BaseException:  # nothing is handled here: the caller has gone, or the error boundary has answered
        if answered.code == "ok":
            answered.code = "cancelled"
        raise
    finally:
        opened.dec()
        _grpc_requests.labels(name, answered.code).inc()
        if not stream:
            _grpc_seconds.labels(name).observe(clock() - started)


def release() -> str:
    try:
        return version("tinkermesh")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"
