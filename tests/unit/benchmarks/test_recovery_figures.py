"""The arithmetic of the figures on durable points and paging."""

import pytest

from benchmarks.durable_points import BLOCK, INTERVAL, _shares
from benchmarks.paging import _costs, _parts

LINES = [
    {"message": "save: 0.003 s"},
    {"message": "published durable/p/m/u: 10 bytes in 0.026 s", "published": "durable/p/m/u", "seconds": 0.0262},
    {"message": "published runs/m/weights/a: 10 bytes in 0.5 s", "published": "runs/m/weights/a", "seconds": 0.5},
    {"message": "load: 0.004 s"},
    {"message": "optim: 0.001 s"},
]


def test_the_cost_of_one_point_is_spread_over_the_default_interval() -> None:
    block = {"wall": 10.0, "CPU": 20.0, "points": 0.0}
    results = {"with": [block | {"wall": 11.0, "CPU": 21.0}], "without": [block]}
    wall, cpu, step = _shares(results)
    assert wall.samples == [pytest.approx(10 * BLOCK / INTERVAL)]
    assert cpu.samples == [pytest.approx(5 * BLOCK / INTERVAL)]
    assert step.samples == [10.0 / BLOCK]


def test_a_switch_is_the_first_step_of_a_turn_without_the_second() -> None:
    assert _costs([[0.5, 0.125], [0.25, 0.25]])[2].samples == [0.375, 0.0]


def test_parts_of_a_switch_are_read_from_the_trainers_lines() -> None:
    found = {figure.name: figure.samples for figure in _parts(LINES)}
    assert found == {
        "of it: capture": [0.003],
        "of it: restore from a durable point": [0.004],
        "of it: write and publish": [0.0262],
    }
