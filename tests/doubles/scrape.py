"""What a service answers a scrape, read as Prometheus would read it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.mesh import RunningMesh

SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """One sample; `family` is the metric's name as docs/metrics.md lists it."""

    family: str
    name: str
    labels: dict[str, str]
    value: float


class Scrape:
    def __init__(self, text: str) -> None:
        self.text = text
        self.all = list(_series(text))

    @property
    def families(self) -> set[str]:
        return {series.family for series in self.all}

    def values(self, name: str, **labels: str) -> list[float]:
        """Of every series of this name that has these labels, perhaps among others."""
        return [s.value for s in self.all if s.name == name and labels.items() <= s.labels.items()]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))


def scrape_address(address: str) -> Scrape:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
        return Scrape(answer.read().decode())


def scrape(mesh: RunningMesh, process: str) -> Scrape:
    return scrape_address(mesh.mesh.addresses.metrics[process])


def _series(text: str) -> Iterator[Series]:
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            yield Series(name, sample.name, dict(sample.labels), sample.value)
