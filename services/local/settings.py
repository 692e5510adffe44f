"""What `tinkermesh up` may be told; every field is a command-line option."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

Durability = Literal["strict", "everysec", "off"]


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    model: Path
    model_name: str
    state_dir: Path
    aliases: tuple[str, ...] = ()  # further names of the model
    # Of the gateway alone: everything behind it listens on the loopback interface.
    host: str = "127.0.0.1"
    # Port 0 = any free port, chosen once and kept over restarts.
    port: int = 8000
    redis_port: int = 7000
    scheduler_port: int = 7001
    trainer_port: int = 7002
    sampler_port: int = 7003
    gateways: int = 1
    schedulers: int = 1
    trainers: int = 1
    slots: int = 8
    max_rank: int = 32
    max_context: int = 2048
    threads: int = 2
    sampler: bool = True
    prefill_decode: bool = False  # two samplers, one for each leg, instead of one for both
    durability: Durability = "strict"  # docs/recovery.md says what each can lose
    redis_memory: int = 0  # MiB Redis may take, 0 = no limit
    metrics: bool = True  # every service is scraped at a port of its own; `metrics_targets` lists them

    @property
    def store(self) -> Path:
        return self.state_dir / "store"

    @property
    def key_file(self) -> Path:
        return self.state_dir / "keys.json"

    @property
    def pepper_file(self) -> Path:
        return self.state_dir / "pepper"

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def metrics_targets(self) -> Path:
        """For Prometheus' file_sd_configs."""
        return self.state_dir / "metrics.json"

    @property
    def kv_directory(self) -> Path:
        """Tier of cache blocks between a prefill and a decode sampler."""
        return self.state_dir / "kv"

    @property
    def samplers(self) -> tuple[str, ...]:
        """Names of the sampler processes; the first one takes whole requests, too."""
        if not self.sampler:
            return ()
        return ("sampler-prefill", "sampler-decode") if self.prefill_decode else ("sampler",)

    @property
    def run_dir(self) -> Path:
        """Port files, which mean nothing once the mesh is down."""
        return self.state_dir / "run"


def default_state_dir() -> Path:
    """TINKERMESH_STATE, or tinkermesh under the user's state directory."""
    if chosen := os.environ.get("TINKERMESH_STATE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tinkermesh"
