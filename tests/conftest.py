"""How tests are spread over workers; those that take the fixture `measured` are the numeric evidence: one table."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests import lanes
from tests.evidence.table import Claim, Measurements, Row, missing, render

KEY = pytest.StashKey[Measurements]()
OUTPUT = "measurements"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KEY] = Measurements()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "measured" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.numbers)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lanes.starts_no_engine)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> lanes.Lanes:
    return lanes.Lanes(config, log)


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Measurements:
    return pytestconfig.stash[KEY]


def _asked_for_all(config: pytest.Config) -> bool:
    return config.option.markexpr == "numbers" and not config.option.collectonly


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """`make numbers` fails when a claim has no number."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[OUTPUT] = [[row.claim.value, *row[1:]] for row in session.config.stash[KEY].rows]
    incomplete = _asked_for_all(session.config) and missing(session.config.stash[KEY].rows)
    if incomplete and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist hands over what it measured."""
    rows = getattr(node, "workeroutput", {}).get(OUTPUT, ())
    node.config.stash[KEY].rows += [Row(Claim(claim), *rest) for claim, *rest in rows]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[KEY].rows
    if not rows:
        return
    lines = render(rows)
    if _asked_for_all(config):
        lines += [f"not measured: {claim}" for claim in missing(rows)]
        file = config.rootpath / "out" / "numbers.md"  # the whole table: a few tests must not replace it by theirs
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    terminalreporter.section("measured numbers")
    terminalreporter.write("\n".join(lines) + "\n")
