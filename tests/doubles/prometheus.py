"""A real Prometheus that scrapes a mesh; skipped with a reason where there is none."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.eventually import until
from tests.doubles.valkey import free_port
from tools.prometheus_tool import program

START_SECONDS = 60.0
CALL_SECONDS = 20.0
HURRY = 20
UNHURRIED = {"TinkermeshLeaseFlaps"}
"""Its window only has to be filled, which takes longer than a twentieth of it."""
WINDOW = re.compile(r"\[(\d+)([mh])\]")
AGE = re.compile(r"(tinkermesh_pool_\w+_seconds(?:\{[^}]*\})?\)) > (\d+)")
METRIC = re.compile(r"\b(?:tinkermesh_\w+|process_\w+|vllm:\w+)")


def required(name: str) -> str:
    """prometheus or promtool; skips without it."""
    found = program(name)
    if found is None:
        reason = f"{name} is absent: `python tools/prometheus_tool.py` fetches Debian's"
        if os.environ.get("TINKERMESH_TEST_PROMETHEUS_REQUIRED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = f"http://{address}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises AssertionError with Prometheus' words when it is wrong."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        answer = self._get("query", data)
        assert answer["status"] == "success", f"{expression}\n{answer}"
        assert answer["data"]["resultType"] == "vector", expression
        return list(answer["data"]["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that are on."""
        alerts = self._get("alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def scraped(self) -> int:
        """How many targets answered their last scrape."""
        return sum(target["health"] == "up" for target in self._get("targets")["data"]["activeTargets"])

    def serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=CALL_SECONDS):
                return True
        except OSError:
            return False

    def _get(self, path: str, data: bytes | None = None) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._address}/api/v1/{path}", data, timeout=CALL_SECONDS) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:  # a query that is wrong is answered in JSON, too
            return dict(json.load(error))


def impatient(rules: dict[str, Any]) -> dict[str, Any]:
    """The same rules without `for`: an alert is on as soon as its expression is true."""
    groups = [
        {**group, "rules": [{k: v for k, v in rule.items() if k != "for"} for rule in group["rules"]]}
        for group in rules["groups"]
    ]
    return {"groups": groups}


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """The same, and what an expression says in minutes divided by HURRY: its windows, and the ages it allows in a pool.

    What is compared with what stays as shipped, and so does every other threshold. The shipped times are looked at by
    tests/chart/test_alert_rules.py.
    """
    groups = [
        {**group, "rules": [{**rule, "expr": _sooner(rule)} for rule in group["rules"]]}
        for group in impatient(rules)["groups"]
    ]
    return {"groups": groups}


def _sooner(rule: dict[str, Any]) -> str:
    expression = str(rule["expr"])
    if rule["alert"] in UNHURRIED:
        return expression
    unit = {"m": 60, "h": 3600}
    shorter = WINDOW.sub(lambda found: f"[{int(found[1]) * unit[found[2]] // HURRY}s]", expression)
    return AGE.sub(lambda found: f"{found[1]} > {int(found[2]) // HURRY}", shorter)


@contextmanager
def prometheus(directory: Path, targets: Path, rules: dict[str, Any]) -> Iterator[Prometheus]:
    """Scrapes and evaluates every second."""
    program_path = required("prometheus")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yaml")],
        "scrape_configs": [{"job_name": "tinkermesh", "file_sd_configs": [{"files": [str(targets)]}]}],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [program_path, f"--config.file={directory / 'prometheus.yaml'}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", "--log.level=warn"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        made = Prometheus(address)
        until(lambda: made.serves() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        yield made
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def clauses(expression: str) -> list[str]:
    """What stands on lines of its own between `and`s."""
    return [clause.strip() for clause in re.split(r"\n\s*and\s*\n", expression.strip())]


def as_number(clause: str) -> str:
    """`a > b` as 0 or 1 instead of nothing or something; a clause that compares nothing as it is."""
    return re.sub(r"\s(==|!=|>=|<=|>|<)\s", r" \1 bool ", clause)


def metrics_of(expression: str) -> set[str]:
    """Names of metrics without what a histogram adds to them; words inside quotes and labels are none."""
    bare = re.sub(r"\{[^}]*\}", "", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(bare)}


def is_number(result: dict[str, Any]) -> bool:
    return not math.isnan(float(result["value"][1]))
