"""What must be gone once every session of a history has ended."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from redis import Redis

from services.common.store import TEMPORARY_PREFIX, VERSION_PREFIX, is_version_of
from services.scheduler.store import keys
from tests.chaos.player import Run
from tests.doubles.fake_trainer import POOL

SETTLED_SECONDS = 20.0
POLL_SECONDS = 0.2
# Rows of the catalog and idempotency rows stay by design (docs/design.md, store/keys.py).
_KEPT_BY_PURGE = re.compile(r":cat:|:session_key:|:ended:|\{s:|:sampling:|:samples_settled|:req:")


async def leaks(redis: Redis, store: Path, run: Run) -> list[str]:
    """What is still there after a while; a leak stays, so only what outlasts it is told."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while (found := _look(redis, store, run)) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return found


def _look(redis: Redis, store: Path, run: Run) -> list[str]:
    try:
        return list(_found(redis, store, run))
    except FileNotFoundError as error:
        return [f"{error.filename} was removed during the look"]


def _found(redis: Redis, store: Path, run: Run) -> Iterator[str]:
    slots = {n.decode(): holder.decode() for n, holder in redis.hgetall(keys.slots(POOL)).items()}
    if held := {n: holder for n, holder in slots.items() if holder}:
        yield f"slots are held: {held}"
    for name, count in _counts(redis):
        if count:
            yield f"{name} holds {count}"
    for key in redis.scan_iter(match=f"{keys.pool_prefix(POOL)}:pay:*", count=10_000):
        if redis.ttl(key) == -1:
            yield f"payload {key.decode()} is kept"
    for model in run.models:
        yield from _model(redis, model.model_id)
    yield from _tenants(redis)
    yield from _files(store, run)


def _counts(redis: Redis) -> Iterable[tuple[str, int]]:
    return (
        ("running units", redis.scard(keys.running_units(POOL))),
        ("captured saves", redis.scard(keys.capturing(POOL))),
        ("active models", redis.zcard(keys.active(POOL))),
        ("waiting creates", redis.zcard(keys.creates(POOL))),
        ("gaps", redis.zcard(keys.gaps(POOL))),
        ("waiting samples", redis.zcard(keys.pending_samples(POOL))),
        ("running samples", redis.hlen(keys.running_samples(POOL))),
        ("dropped blobs", redis.llen(keys.dropped_blobs(POOL))),
    )


def _model(redis: Redis, model_id: str) -> Iterator[str]:
    if not model_id:
        return
    state = redis.hget(keys.model(POOL, model_id), "state")
    if state not in (b"closed", None):
        yield f"{model_id} is {state!r} after its session"
    for name in ("queue", "log"):
        key = f"{keys.pool_prefix(POOL)}:{name}:{model_id}"
        if redis.exists(key):
            yield f"{name} of {model_id} is still there"


def _tenants(redis: Redis) -> Iterator[str]:
    """Nobody occupies anything; samples are counted in their own hash."""
    for key in redis.scan_iter(match=f"{keys.pool_prefix(POOL)}:usage:*", count=10_000):
        held = {n.decode(): v.decode() for n, v in redis.hgetall(key).items()}
        if any(held.get(name, "0") not in ("0", "") for name in ("models", "bytes", "open", "samples")):
            yield f"{key.decode()} still counts {held}"


def _files(store: Path, run: Run) -> Iterator[str]:
    """No half-written directory, no version nobody names (snapshots stay), no durable point, no payload file."""
    for residue in store.rglob(f"{TEMPORARY_PREFIX}*"):
        yield f"residue {residue.relative_to(store)}"
    for model in run.models:
        replaced = {one.name for one in model.plan.commands if one.overwrite}  # older versions have their grace period
        for version in (store / "runs" / model.model_id / "weights").glob(f"{VERSION_PREFIX}*"):
            if any(is_version_of(version.name, name) for name in replaced):
                continue
            if not any(link.is_symlink() and link.resolve() == version for link in version.parent.iterdir()):
                yield f"orphan {version.relative_to(store)}"
        if model.model_id and (store / "durable" / POOL / model.model_id).exists():
            yield f"durable points of {model.model_id} are still there"
    for blob in store.rglob("blob-*"):
        yield f"payload file {blob.relative_to(store)}"


def purged(redis: Redis, models: Iterable[str]) -> list[str]:
    """Keys that still name one of `models` after the purge, beyond the documented ones."""
    wanted = set(models)
    found = []
    for raw in redis.scan_iter(match="tm:*", count=10_000):
        key = raw.decode()
        if not _KEPT_BY_PURGE.search(key) and any(model in key for model in wanted):
            found.append(key)
    return found
