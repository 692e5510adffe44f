"""Every value of the chart does what it says, and none is without a test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.helm import at, merged, refusal, render
from tests.chart.leaves import POOL, is_setting, leaves
from tests.chart.switches import BASE, REFUSES, SWITCHES, Switch

# Those that change what another row of the same pool looks at, or must agree with it.
ALONE = (
    "nodes",
    "gpusPerNode",
    "tensorParallel",
    "dataParallel",
    "launcher",
    "autoscaling.kind",
    "podDisruptionBudget.enabled",
    "model.path",
    "model.mountPath",
    "model.volume",
)
POOL_SWITCHES = [switch for switch in SWITCHES if switch.path.startswith(POOL)]
INHERITED = [switch for switch in POOL_SWITCHES if not switch.path.endswith(ALONE)]


def values(switch: Switch) -> dict[str, Any]:
    return at(switch.path.replace(POOL, "pools.p"), switch.value)


def _distinct(switches: list[Switch]) -> list[Any]:
    found: list[Any] = []
    for switch in switches:
        if switch.given not in found:
            found.append(switch.given)
    return found


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.path)
def test_a_value_arrives_where_it_belongs(switch: Switch) -> None:
    before = render(merged(BASE, switch.given, switch.instead))
    after = render(merged(BASE, switch.given, values(switch)))
    assert switch.holds(after), f"{switch.where} is {switch.seen(after)!r}"
    assert not switch.holds(before), f"{switch.where} is {switch.seen(before)!r} without the value too"


@pytest.mark.parametrize("given", [dict(g) for g in _distinct(INHERITED)], ids=str)
def test_what_a_pool_does_not_say_is_taken_from_pool_defaults(given: dict[str, Any]) -> None:
    switches = [switch for switch in INHERITED if switch.given == given]
    inherited = [at(switch.path.replace(POOL, "poolDefaults"), switch.value) for switch in switches]
    rendered = render(merged(BASE, {"poolDefaults": given.get("pools", {}).get("p", {})}, *inherited))
    for switch in switches:
        assert switch.holds(rendered), f"{switch.path}: {switch.where} is {switch.seen(rendered)!r}"


def test_a_pool_goes_before_pool_defaults_also_with_zero_and_false() -> None:
    defaults = {"samplers": {"both": {"replicas": 3}}, "trainer": {"settings": {"slots": 5}}, "aliases": ["x"]}
    own = {"samplers": {"both": {"replicas": 0}}, "trainer": {"settings": {"slots": 6}}, "aliases": []}
    rendered = render(merged(BASE, {"poolDefaults": defaults, "pools": {"p": own}}))
    assert rendered.get("Deployment/sampler-p") is None
    assert rendered.environment("StatefulSet/trainer-p")["TINKERMESH_TRAINER_SLOTS"] == "6"
    assert rendered.environment("StatefulSet/trainer-p")["TINKERMESH_TRAINER_ALIASES"] == ""


def test_every_value_has_its_test() -> None:
    """A new value without a row in switches.py fails here; so does a row of a value that is gone."""
    tested = {switch.path for switch in SWITCHES} | REFUSES
    assert tested == {path for path in leaves() if not is_setting(path)}


def test_an_unknown_value_is_refused_with_its_path() -> None:
    assert "gatway" in refusal(merged(BASE, {"gatway": {"replicas": 2}}))


def test_a_pool_can_be_switched_off_by_null() -> None:
    rendered = render(merged(BASE, {"pools": {"p": None, "q": {"model": {"path": "/models/q"}}}}))
    assert rendered.get("StatefulSet/trainer-q") and not rendered.get("StatefulSet/trainer-p")
