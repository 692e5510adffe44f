"""Where the parts of a mesh on this machine are: written by `tinkermesh up`, read by the other commands."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.common.errors import InvalidInput
from services.local.addresses import Addresses
from services.local.settings import Durability, LocalSettings

FILE = "mesh.json"


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """host:port of everything. It outlives the mesh: see `is_running`."""

    base_url: str
    redis: str
    schedulers: tuple[str, ...]
    trainers: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    model: str
    model_name: str
    durability: Durability


def write(settings: LocalSettings, addresses: Addresses) -> None:
    """Into the run directory, atomically."""
    endpoints = Endpoints(
        base_url=addresses.base_url,
        redis=addresses.redis,
        schedulers=addresses.schedulers,
        trainers=addresses.trainers,
        samplers=addresses.samplers if settings.sampler else (),
        model=str(settings.model),
        model_name=settings.model_name,
        durability=settings.durability,
    )
    path = settings.run_dir / FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(endpoints)) + b"\n")
    temporary.replace(path)


def read(state_dir: Path) -> Endpoints | None:
    """Of the mesh that runs on `state_dir`, or the last one that did. Raises InvalidInput when the file is broken."""
    path = state_dir / "run" / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Endpoints)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}; delete it, the next tinkermesh up writes it") from error
