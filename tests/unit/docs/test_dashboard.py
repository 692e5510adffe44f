"""The shipped dashboard is what its list of panels makes, and it names only metrics there are."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from services.common.errors import BY_CODE, UserError
from tests.doubles.prometheus import metrics_of, required
from tools import dashboard
from tools.metrics_doc import SECTIONS

FILES = Path(__file__).resolve().parents[3] / "charts" / "tinkermesh" / "files"
ALERTS = [
    rule["expr"] for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
ROWS = [panel for panel in dashboard.dashboard()["panels"] if panel["type"] != "row"]
PANELS = [target["expr"] for panel in ROWS for target in panel["targets"]]
DECLARED = {one.name for section in SECTIONS.values() for one in section}


def test_the_dashboard_is_what_the_list_of_panels_makes() -> None:
    """After a change: python tools/dashboard.py."""
    assert json.loads((FILES / "dashboard.json").read_text()) == dashboard.dashboard()
    numbers = [panel["id"] for panel in dashboard.dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_expressions_name_only_metrics_there_are() -> None:
    """vLLM's own are those of its version: tests/e2e looks for them in a real sampler."""
    for expression in (*ALERTS, *PANELS):
        named = {metric for metric in metrics_of(expression) if not metric.startswith("vllm:")}
        assert named or "vllm:" in expression
        assert named <= DECLARED, (expression, named - DECLARED)


def test_no_two_panels_have_one_name_with_one_legend() -> None:
    """tests/mesh/test_alerts.py knows them by both."""
    names = [(panel["title"], one["legendFormat"]) for panel in ROWS for one in panel["targets"]]
    assert len(names) == len(set(names))


def test_the_alert_of_completions_names_every_error_that_is_the_meshs_own() -> None:
    (expression,) = (one for one in ALERTS if "completions_total" in one)
    named = {frozenset(one.split("|")) for one in re.findall(r'outcome=~"([^"]*)"', expression)}
    assert named == {frozenset({c for c, kind in BY_CODE.items() if not issubclass(kind, UserError)} | {"internal"})}


def test_promtool_finds_the_rules_right() -> None:
    command = [required("promtool"), "check", "rules", str(FILES / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
