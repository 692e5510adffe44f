"""Which tests stay together when `make test` runs two at a time (pytest-xdist).

What one session pays for once (an engine, a mesh) must not be started by both workers: all files that use it
are one lane. Every other file is a lane of its own, so that its module's fixtures are made once, in its tests' order.

pytest-xdist's own groups do nothing under this pytest (3.8.0 writes them into a field that 9.2 has no more).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
# Fixtures of the session that start processes, and where they are known by that name.
SHARED = {"real_mesh": "tests/e2e/", "sampler": "tests/contract/sampler/", "plain_mesh": "tests/mesh/"}


class Lanes(LoadScopeScheduling):
    """Hands out lane by lane, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid.partition("::")[0])


@cache
def lane(file: str, root: Path = ROOT) -> str:
    """Of a file named as a test's id names it."""
    text = (root / file).read_text()
    names = (name for name, where in SHARED.items() if file.startswith(where) and re.search(rf"\b{name}\b", text))
    return next(names, file)


def starts_no_engine(item: pytest.Item) -> bool:
    """A key to sort by: a worker that took an engine's lane last would work alone to the end."""
    return item.get_closest_marker("engine") is None
