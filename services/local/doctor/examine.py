"""All checks of the doctor, in the order in which the causes of trouble are best removed."""

from __future__ import annotations

from collections.abc import Iterator

from services.common.findings import Finding, note
from services.local.doctor import certificates, engines, files, model_dir, ports, reach
from services.local.doctor.redis import redis
from services.local.doctor.target import Target


def examine(target: Target, *, deep: bool = False) -> Iterator[Finding]:
    """Every check that `target` gives a place to look at; each ends within bounded time."""
    ours = target.state_dir is not None
    if target.state_dir is not None:
        yield from files.state(target.state_dir)
    yield from files.secrets(target.key_file, target.pepper_file, ours=ours)
    yield from certificates.certificates()
    if target.redis_url:
        yield from redis(target.redis_url, target.durability)
    if target.store is not None and (not ours or target.store.exists()):
        yield from files.store(target.store)
    if target.model is not None:
        yield from model_dir.model(target.model)
    yield from engines.engines(ours=ours, deep=deep)
    if ours:
        yield engines.gpu()
    yield from _parts(target, ours=ours)


def _parts(target: Target, *, ours: bool) -> Iterator[Finding]:
    if ours and not target.running:
        yield note("mesh", f"none runs on {target.state_dir}: this is what tinkermesh up would meet")
        yield ports.redis_server()
        yield from ports.ports(target.last)
        return
    yield from reach.schedulers(target.schedulers, ours=ours)
    for address in target.engines:
        yield reach.engine(address)
    if target.base_url:
        yield from reach.gateway(target.base_url, target.api_key)
