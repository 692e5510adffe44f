"""Scraping a release: what is made for Prometheus and Grafana, where, and who may come."""

from __future__ import annotations

import json
import re

import yaml

from tests.chart.helm import CHART, Rendered, merged, render
from tests.chart.switches import BASE, MONITORED, NODES

KNOWN = ("--api-versions", "monitoring.coreos.com/v1")
OFF = {"metrics": {"enabled": False}}
PARTS = ("gateway", "scheduler", "trainer", "sampler")


def test_kinds_of_the_operator_are_made_where_the_cluster_knows_them() -> None:
    assert not render(BASE).of_kind("ServiceMonitor", "PrometheusRule")
    assert len(render(BASE, *KNOWN).of_kind("ServiceMonitor", "PrometheusRule")) == 2
    never = {"metrics": {"serviceMonitor": {"create": "never"}, "prometheusRule": {"create": "never"}}}
    assert not render(merged(BASE, never), *KNOWN).of_kind("ServiceMonitor", "PrometheusRule")


def test_without_metrics_nothing_of_them_is_left() -> None:
    rendered = render(merged(BASE, MONITORED, OFF), *KNOWN)
    assert not re.search("metrics_listen|9464|grafana|name: metrics|-metrics", rendered.text, re.IGNORECASE)


def scraped(rendered: Rendered) -> set[str]:
    """Workloads behind a Service with a port that the ServiceMonitor asks for."""
    (monitor,) = rendered.of_kind("ServiceMonitor")
    ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    services = [
        service
        for service in rendered.of_kind("Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        and ports & {port["name"] for port in service["spec"]["ports"]}
    ]
    return {
        key.split("/")[1]
        for key, template in rendered.pod_templates().items()
        for service in services
        if service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    }


def test_every_pod_of_the_mesh_is_scraped_and_no_other() -> None:
    found = scraped(render(merged(BASE, MONITORED)))
    assert found == {f"t-tinkermesh-{name}" for name in ("gateway", "scheduler", "trainer-p", "sampler-p")}


def test_only_the_first_node_of_a_trainer_is_scraped() -> None:
    """The others serve nothing: they would be seen as down."""
    (monitor,) = render(merged(BASE, NODES, MONITORED)).of_kind("ServiceMonitor")
    (rule,) = monitor["spec"]["endpoints"][0]["relabelings"]
    dropped = re.compile(rule["regex"])
    pods = {"trainer;t-trainer-p-0": False, "trainer;t-trainer-p-1": True, "trainer;t-trainer-p-12": True}
    leaders = {"trainer;t-trainer-p-7-0": False, "trainer;t-trainer-p-0-1": True, "sampler;t-sampler-1": False}
    for text, expected in (pods | leaders).items():
        assert bool(dropped.fullmatch(text)) is expected, text


def test_the_ports_clients_reach_are_not_the_ones_that_are_scraped() -> None:
    for name in ("gateway", "scheduler", "trainer-p"):
        service = render(BASE).get(f"Service/{name}")
        assert service is not None
        assert "metrics" not in {port["name"] for port in service["spec"]["ports"]}


def test_strangers_reach_the_metrics_port_alone() -> None:
    rendered = render(BASE)
    for part in PARTS:
        policy = rendered.get(f"NetworkPolicy/{part}")
        assert policy is not None
        open_to_all = [rule for rule in policy["spec"]["ingress"] if {"namespaceSelector": {}} in rule.get("from", ())]
        assert [rule["ports"] for rule in open_to_all] == [[{"port": 9464, "protocol": "TCP"}]]
    for part in ("redis",):
        assert "9464" not in yaml.safe_dump(rendered.get(f"NetworkPolicy/{part}"))


def test_rules_and_dashboard_arrive_as_they_are_shipped() -> None:
    """Templates of Prometheus and Grafana look like Helm's; Helm must leave them alone."""
    rendered = render(merged(BASE, MONITORED))
    (rule,) = rendered.of_kind("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    shown = rendered.get("ConfigMap/dashboard")
    assert shown is not None
    assert json.loads(shown["data"]["tinkermesh.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
