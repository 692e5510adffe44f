"""The state directory: made ready, locked against a second mesh, with a key in it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from services.common.errors import InvalidInput
from services.common.keyring import Keyring, load_pepper
from services.local.settings import LocalSettings

DEFAULT_KEY = "tml-local"


def prepare(settings: LocalSettings) -> IO[str]:
    """Directories, pepper and default key; answers the lock, held until it is closed.

    Raises InvalidInput when another mesh runs on this directory.
    """
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # keys, weights and logs of all tenants
    for directory in (
        settings.store,
        settings.logs,
        settings.run_dir,
        settings.kv_directory,
        settings.state_dir / "redis",
    ):
        directory.mkdir(parents=True, exist_ok=True)
    lock = _lock(settings.state_dir / "lock")
    keyring(settings.key_file, settings.pepper_file).add(DEFAULT_KEY, label="local default")
    for log in settings.logs.glob("*.log"):
        log.replace(log.with_suffix(".log.1"))
    return lock


def write_metrics_targets(settings: LocalSettings, metrics: Mapping[str, str]) -> None:
    """As Prometheus reads them; an empty list where nothing is scraped."""
    groups = [
        {"targets": [address], "labels": {"service": name.partition("-")[0], "process": name}}
        for name, address in metrics.items()
    ]
    temporary = settings.metrics_targets.with_suffix(".tmp")
    temporary.write_text(json.dumps(groups, indent=1) + "\n")
    temporary.replace(settings.metrics_targets)


def keyring(key_file: Path, pepper_file: Path) -> Keyring:
    return Keyring(key_file, load_pepper(pepper_file, create=True))


def _lock(path: Path) -> IO[str]:
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InvalidInput(f"--state-dir: another mesh runs on {path.parent}; stop it or choose another") from error
    return file
