"""The page that lists every value and its test is what it says."""

from __future__ import annotations

import subprocess
import sys

from tests.chart.helm import ROOT, any_helm
from tests.chart.leaves import leaves
from tests.chart.switch_list import PAGE, page
from tests.chart.switch_list import test_of as covering_test


def test_the_page_is_up_to_date() -> None:
    """After a change of the values: python -m tests.chart.switch_list."""
    assert PAGE.read_text() == page()


def test_every_test_the_page_names_exists() -> None:
    any_helm()
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/chart"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False).stdout
    collected = {line.strip().removeprefix("tests/chart/") for line in listed.splitlines()}
    bases = {name.partition("[")[0] for name in collected}
    missing = {covering_test(path) for path in leaves()} - collected - bases
    assert missing == set()
