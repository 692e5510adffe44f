"""Which tests stay together when `make test` runs two at a time (pytest-xdist, ``--dist loadgroup``).

What one session pays for once (an engine, a mesh) must not be started by both workers: all files that use it
are one group. Every other file is a group of its own, so that its module's fixtures are made once.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

# Fixtures of the session that start processes, and where they are known by that name.
SHARED = {"real_mesh": "tests/e2e/", "sampler": "tests/contract/sampler/", "plain_mesh": "tests/mesh/"}


def group(items: Iterable[pytest.Item]) -> None:
    """Marks every test with its group."""
    items = list(items)
    shared = {_file(item): name for item in items for name in SHARED if _uses(item, name)}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(shared.get(_file(item), _file(item))))


def starts_no_engine(item: pytest.Item) -> bool:
    """A key to sort by: a worker that took an engine's group last would work alone to the end."""
    return item.get_closest_marker("engine") is None


def _uses(item: pytest.Item, name: str) -> bool:
    return name in getattr(item, "fixturenames", ()) and item.nodeid.startswith(SHARED[name])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
