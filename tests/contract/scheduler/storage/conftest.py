"""Servers of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.valkey import ValkeyProcess


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """For a test that changes settings or kills: switching the AOF off and on would lose others' data."""
    server = ValkeyProcess(tmp_path)
    server.start()
    yield server
    server.kill()  # one that has just switched its AOF on takes long to end in order
