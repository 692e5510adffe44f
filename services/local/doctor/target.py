"""What the doctor looks at: the mesh on a state directory, or the parts that options and variables name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.common.errors import InvalidInput
from services.local import default_model, endpoints
from services.local.places import API_KEY, BASE_URL
from services.local.settings import LocalSettings
from services.local.state import DEFAULT_KEY
from services.local.tenancy_client import is_running

REDIS_URL = "TINKERMESH_SCHEDULER_REDIS_URL"
DURABILITY = "TINKERMESH_SCHEDULER_DURABILITY"
SCHEDULER = "TINKERMESH_SCHEDULER"
_SCHEDULERS = (
    SCHEDULER,
    "TINKERMESH_GATEWAY_SCHEDULER",
    "TINKERMESH_TRAINER_SCHEDULERS",
    "TINKERMESH_SAMPLER_SCHEDULERS",
)
_STORES = ("TINKERMESH_SCHEDULER_STORE_ROOT", "TINKERMESH_TRAINER_STORE_ROOT", "TINKERMESH_SAMPLER_STORE_ROOT")
_PEPPERS = ("TINKERMESH_SCHEDULER_PEPPER_FILE", "TINKERMESH_GATEWAY_PEPPER_FILE")
_KEYS = ("TINKERMESH_SCHEDULER_KEY_FILE", "TINKERMESH_GATEWAY_KEY_FILE")
_MODELS = ("TINKERMESH_TRAINER_MODEL_PATH", "TINKERMESH_SAMPLER_MODEL_PATH")
_NAMES = (REDIS_URL, *_SCHEDULERS, *_STORES, *_PEPPERS, *_KEYS, *_MODELS)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of the command; "" or None = not given."""

    state_dir: Path | None = None
    scheduler: str = ""
    url: str = ""
    redis: str = ""
    store: str = ""
    model: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """ "" or None = not known, and not looked at."""

    state_dir: Path | None = None  # of a mesh on this machine
    running: bool = False  # that mesh
    last: endpoints.Endpoints | None = None  # where that mesh is, or was
    redis_url: str = ""
    durability: str = ""
    schedulers: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()  # trainers and samplers that are asked themselves
    base_url: str = ""
    api_key: str = ""
    store: Path | None = None
    key_file: Path | None = None
    pepper_file: Path | None = None
    model: Path | None = None


def resolve(options: Options, where: Path, environ: Mapping[str, str] = os.environ) -> Target:
    """`where`: the state directory in force. Raises InvalidInput."""
    _check_secret(options.redis)
    found = endpoints.read(where)
    running = found is not None and is_running(where)
    named = bool(options.scheduler or options.url or options.redis or any(environ.get(name) for name in _NAMES))
    url = environ.get(BASE_URL, "")
    elsewhere = bool(url) and (found is None or url != found.base_url)
    if options.state_dir is None and (named or elsewhere):
        return _named(options, environ)
    return _local(options, where, environ, found, running=running)


def _named(options: Options, environ: Mapping[str, str]) -> Target:
    return Target(
        redis_url=options.redis or environ.get(REDIS_URL, ""),
        durability=environ.get(DURABILITY, ""),
        schedulers=_split(options.scheduler or _first(environ, _SCHEDULERS)),
        base_url=options.url or environ.get(BASE_URL, ""),
        api_key=environ.get(API_KEY, ""),
        store=_path(options.store or _first(environ, _STORES)),
        key_file=_path(_first(environ, _KEYS)),
        pepper_file=_path(_first(environ, _PEPPERS)),
        model=_path(options.model or _first(environ, _MODELS)),
    )


def _local(
    options: Options, where: Path, environ: Mapping[str, str], found: endpoints.Endpoints | None, *, running: bool
) -> Target:
    paths = LocalSettings(model=Path(), model_name="", state_dir=where)
    model = options.model or (found.model if found is not None else "")
    there = Target(
        state_dir=where,
        last=found,
        key_file=paths.key_file,
        pepper_file=paths.pepper_file,
        store=_path(options.store) or paths.store,
        model=_path(model) or _default_model(),
    )
    if found is None or not running:
        return there
    return msgspec.structs.replace(
        there,
        running=True,
        redis_url=options.redis or f"redis://{found.redis}/0",
        durability=found.durability,
        schedulers=_split(options.scheduler) or found.schedulers,
        engines=(*found.trainers, *found.samplers),
        base_url=options.url or found.base_url,
        api_key=environ.get(API_KEY) or DEFAULT_KEY,
    )


def _default_model() -> Path | None:
    """Where `up` without --model finds it, once it was fetched."""
    path = default_model.cache_root() / "models" / default_model.DIRECTORY
    return path if path.is_dir() else None


def _check_secret(redis_url: str) -> None:
    if "@" in redis_url:
        raise InvalidInput(f"--redis: others on this machine see a password there; put the address into {REDIS_URL}")


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
