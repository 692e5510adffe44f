"""Settings of the scheduler: TINKERMESH_SCHEDULER_<FIELD>."""

from __future__ import annotations

import os
import socket
from typing import Literal

import msgspec

from services.common.settings import ServiceSettings


class Settings(ServiceSettings, frozen=True):
    """Times in seconds. `durability` relaxed starts on a Redis that may lose accepted work."""

    store_root: str
    pepper_file: str
    key_file: str = ""  # needed for access tokens of other accounts only
    listen: str = "127.0.0.1:7001"
    redis_url: str = "redis://127.0.0.1:7000/0"
    replica: str = msgspec.field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    durability: Literal["strict", "relaxed"] = "strict"
    lease_seconds: float = 300.0
    outage_seconds: float = 6.0  # a longer silence of all gateways gives leases their time back
    grace_seconds: float = 60.0
    gap_timeout_seconds: float = 900.0
    retention_seconds: float = 86_400.0
    record_seconds: float = 86_400.0  # how long a recorded sequence lives after its last use
    fair: bool = True
    samplers: bool = True  # false: this mesh runs none, so samples are refused instead of waiting for one
    sample_seconds: float = 600.0
    sampler_wait_seconds: float = 300.0
    adapter_load_seconds: float = 120.0
    open_samples_per_tenant: int = 8_192
    registration_seconds: float = 10.0
    term_lease_seconds: float = 5.0
