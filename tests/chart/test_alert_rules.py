"""When each alert fires and when not yet, by promtool: thresholds, `for`, labels and texts as they are shipped."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.prometheus import required
from tools.metrics_doc import SECTIONS

CASES = Path(__file__).with_name("alerts_test.yaml")
RULES = Path(__file__).resolve().parents[2] / "charts" / "tinkermesh" / "files" / "alerts.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
TESTS: dict[str, dict[str, Any]] = {test["name"]: test for test in yaml.safe_load(CASES.read_text())["tests"]}
DECLARED = {one.name: one for section in SECTIONS.values() for one in section}
SERIES = re.compile(r'(\w+)="([^"]*)"')


def promtool(cases: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([required("promtool"), "test", "rules", str(cases)], capture_output=True, text=True)


def test_each_alert_fires_when_it_should_and_not_half_a_minute_before() -> None:
    done = promtool(CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("said", "instead"), [("600x20 630x40", "600x60"), ("eval_time: 23m\n", "eval_time: 22m\n")])
def test_a_case_that_is_wrong_is_found(said: str, instead: str, tmp_path: Path) -> None:
    """Negative control: no fault, and a look before the alert's `for` is over."""
    text = CASES.read_text().replace("../../charts", str(RULES.parents[2]))
    assert said in text
    changed = tmp_path / "cases.yaml"
    changed.write_text(text.replace(said, instead))
    assert promtool(changed).returncode != 0


def test_every_alert_has_a_case_that_is_silent_first_and_fires() -> None:
    assert list(TESTS) == list(ALERTS)
    for name, test in TESTS.items():
        *silent, loud = test["alert_rule_test"]
        assert all(one["alertname"] == name and one["exp_alerts"] == [] for one in silent) and len(silent) == 2
        assert loud["alertname"] == name and loud["exp_alerts"]


def series() -> Iterator[tuple[str, set[str]]]:
    for test in TESTS.values():
        for one in test["input_series"]:
            name, _, labels = one["series"].partition("{")
            yield name, {label for label, _ in SERIES.findall(labels)}


def test_the_series_of_the_cases_have_the_labels_that_services_tell() -> None:
    for name, labels in series():
        declared = DECLARED[re.sub("_(bucket|count)$", "", name)]
        told = {*declared.labels, *(["le"] if name.endswith("_bucket") else [])}
        assert labels == {"job", "instance", *told}, name
