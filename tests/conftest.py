"""Tests that take the fixture `measured` are the numeric evidence: marked, and printed as one table."""

from __future__ import annotations

import pytest

from tests.evidence.table import Measurements, missing, render

KEY = pytest.StashKey[Measurements]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KEY] = Measurements()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "measured" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.numbers)


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Measurements:
    return pytestconfig.stash[KEY]


def _asked_for_all(config: pytest.Config) -> bool:
    return config.option.markexpr == "numbers" and not config.option.collectonly


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """`make numbers` fails when a claim has no number."""
    incomplete = _asked_for_all(session.config) and missing(session.config.stash[KEY].rows)
    if incomplete and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
