"""The settings trainer and sampler share."""

from __future__ import annotations

import socket

import pytest

from services.common.engine_settings import EngineSettings
from services.common.errors import InvalidInput


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:99"),
        ("0.0.0.0:7002", "", f"{socket.gethostname()}:99"),
        ("[::]:7002", "", f"{socket.gethostname()}:99"),
        ("0.0.0.0:7002", "trainer-0.mesh:7002", "trainer-0.mesh:7002"),
        ("0.0.0.0:0", "trainer-0.mesh:0", "trainer-0.mesh:99"),
    ],
)
def test_advertised_address_can_be_reached_from_another_machine(listen: str, advertise: str, expected: str) -> None:
    settings = EngineSettings(model_path="m", store_root="s", listen=listen, advertise=advertise)
    assert settings.advertised(99) == expected


def test_a_count_below_one_is_refused_by_its_name() -> None:
    settings = EngineSettings(model_path="m", store_root="s", listen="127.0.0.1:0", max_rank=0)
    with pytest.raises(InvalidInput, match="max_rank must be at least 1, not 0"):
        settings.check_counts("max_rank")
