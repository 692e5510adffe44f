"""docs/chart-values.md: every value of the chart, its default, and the test that covers it.

Usage: python -m tests.chart.switch_list
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import CHART, ROOT
from tests.chart.leaves import POOL, is_setting, leaves
from tests.chart.switches import REFUSES

PAGE = ROOT / "docs" / "chart-values.md"
HEAD = """# Values of the chart

Written by `python -m tests.chart.switch_list`; what each value means stands in `charts/tinkermesh/values.yaml`.
`pools.*` is one pool: its defaults are those of `poolDefaults`, which has the same paths. Tests are in `tests/chart/`;
`make chart-test` runs them.

| value | default | test |
|---|---|---|
"""
SERVICE = {"gateway": "gateway", "scheduler": "scheduler", "trainer": "trainer", "samplers": "sampler"}


def default_of(path: str, values: dict[str, Any]) -> str:
    """Settings have the services' own."""
    found: Any = values
    for part in path.replace(POOL, "poolDefaults").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "the service's" if is_setting(path) else f"`{json.dumps(found)}`"


def test_of(path: str) -> str:
    if leg := re.search(r"\.(prefill|decode)\.settings\.", path):
        return f"test_prefill_decode.py::test_every_setting_reaches_its_leg[{leg[1]}]"
    if is_setting(path):
        service = next(SERVICE[part] for part in reversed(path.split(".")) if part in SERVICE)
        return f"test_contract.py::test_every_setting_reaches_its_service[{service}]"
    if path in REFUSES:
        return "test_fit.py::test_the_gpus_of_a_single_node_must_add_up"
    return f"test_switches.py::test_a_value_arrives_where_it_belongs[{path}]"


def page() -> str:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = (f"| `{path}` | {default_of(path, values)} | {test_of(path)} |" for path in leaves())
    return HEAD + "\n".join(rows) + "\n"


def write(path: Path = PAGE) -> None:
    path.write_text(page())


if __name__ == "__main__":
    write()
