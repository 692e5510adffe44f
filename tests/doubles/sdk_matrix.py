"""The SDK releases the mesh promises to serve: the oldest, two between, and the newest."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from tests.doubles.scenario import sdk_python

OLDEST = "0.26.2"
BETWEEN = ("0.30.4", "0.34.0")
NEWEST = "0.38.0"
VERSIONS = (OLDEST, *BETWEEN, NEWEST)


def interpreter(version: str) -> Path:
    """The Python that has this SDK; skips the test without one, or fails it under `make sdk-matrix`."""
    if version == importlib.metadata.version("tinker"):
        return Path(sys.executable)
    python = sdk_python(version)
    if python.exists():
        return python
    text = f"no environment of SDK {version}: run `make sdk-matrix`, or `make sdk-venvs` for the oldest alone"
    if os.environ.get("TINKERMESH_TEST_WHOLE_MATRIX"):
        pytest.fail(text)
    pytest.skip(text)
