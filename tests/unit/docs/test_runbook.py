"""Each alert leads to its entry in docs/runbook.md, and the entry's commands are those that a test runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.doubles.grpcurl import documented
from tests.doubles.prometheus import HURRY, as_number, clauses, hurried, metrics_of
from tools.metrics_doc import SECTIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
ENTRIES = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###? |\Z)", PAGE, re.MULTILINE | re.DOTALL))
RULES = yaml.safe_load((ROOT / "charts" / "tinkermesh" / "files" / "alerts.yaml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
DECLARED = {one.name for section in SECTIONS.values() for one in section}


def commands(page: str) -> set[str]:
    return {" ".join(command.split()) for block in documented(page) for command in block.commands}


def test_alerts_and_entries_are_the_same_ones_in_the_same_order() -> None:
    assert list(ENTRIES) == list(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_how_bad_it_is_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
    assert rule["annotations"]["summary"]


@pytest.mark.parametrize("name", ALERTS)
def test_an_entry_says_how_to_look_and_what_to_do(name: str) -> None:
    assert re.search(r"^- Look", ENTRIES[name], re.MULTILINE)
    assert re.search(r"^- (Look and do|Do)", ENTRIES[name], re.MULTILINE)


def test_commands_are_those_of_the_page_that_a_test_runs() -> None:
    assert commands(PAGE) <= commands((ROOT / "docs" / "operate.md").read_text())


def test_metrics_that_an_entry_names_are_there() -> None:
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = {name for quoted in re.findall(r"`([^`]+)`", text) for name in metrics_of(quoted)}
    assert named
    assert {name for name in named if not name.startswith("vllm:")} <= DECLARED


def test_clauses_are_told_apart_and_become_numbers() -> None:
    """The controls of what tests/mesh/test_alerts.py builds on."""
    assert clauses('a > 1\nand\nb{x=~"c>d"} == 0\n') == ["a > 1", 'b{x=~"c>d"} == 0']
    assert as_number('b{x=~"c>d"} == 0') == 'b{x=~"c>d"} == bool 0'
    assert metrics_of('rate(tinkermesh_x_bucket{a="tinkermesh_y"}[5m]) / vllm:z_total') == {
        "tinkermesh_x",
        "vllm:z_total",
    }


def test_hurried_rules_differ_from_the_shipped_ones_in_times_alone() -> None:
    """What tests/mesh/test_alert_faults.py and test_alert_pauses.py build on."""
    rules = {rule["alert"]: rule for group in hurried(RULES)["groups"] for rule in group["rules"]}
    assert list(rules) == list(ALERTS) and not any("for" in rule for rule in rules.values())
    times = re.compile(r"\[\d+[smh]\]|(?<=_seconds\) > )\d+|(?<=\) > )(120|6)$", re.MULTILINE)
    for name, rule in rules.items():
        assert times.sub("T", rule["expr"]) == times.sub("T", ALERTS[name]["expr"]), name
        assert {**rule, "expr": ""} == {k: v for k, v in {**ALERTS[name], "expr": ""}.items() if k != "for"}
    assert rules["TinkermeshReplayStuck"]["expr"].split("\n")[0].endswith(f"> {300 // HURRY}")
    assert "[15s]) > 10" in rules["TinkermeshSlowAnswers"]["expr"].replace(")))", ")")


def test_the_table_of_faults_names_every_alert_and_a_test_expects_each() -> None:
    told = (ROOT / "docs" / "metrics.md").read_text().split("| fault | alerts |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"Tinkermesh\w+", told)) == set(ALERTS)
    tests = [
        (ROOT / "tests" / "mesh" / f"test_alert{part}.py").read_text() for part in ("s", "_faults", "_pauses", "_tier")
    ]
    assert set(re.findall(r"\"(Tinkermesh\w+)\"", "".join(tests))) == set(ALERTS)
