"""Every path a user may set, read from the chart's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.chart.helm import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
POOL = "pools.*"


def leaves() -> list[str]:
    """`pools.*` stands for one pool; poolDefaults has the same paths and is tested as a whole."""
    top = dict(SCHEMA["properties"])
    del top["pools"], top["poolDefaults"], top["global"]
    paths = [path for name, part in top.items() for path in _leaves(name, part)]
    return paths + list(_leaves(POOL, SCHEMA["$defs"]["pool"]))


def _leaves(path: str, schema: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    properties = schema.get("properties")
    if not properties:
        yield path
        return
    for name, part in properties.items():
        yield from _leaves(f"{path}.{name}", part)


def is_setting(path: str) -> bool:
    """A field of a service's own settings: covered by the test of the contract, all of them at once."""
    return ".settings." in path
