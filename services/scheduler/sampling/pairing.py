"""Which prefill and decode samplers may work together: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from tinkermesh.v1 import sampler_pb2 as pb

BOTH, PREFILL, DECODE = "both", "prefill", "decode"
FIELDS = ("engine", "model_fingerprint", "block_size", "hash_algorithm", "hash_seed", "dtype", "tier")


class Member(Protocol):
    @property
    def sampler_id(self) -> str: ...

    @property
    def role(self) -> str:
        """both, prefill or decode."""
        ...

    @property
    def kv(self) -> pb.KvFacts: ...


M = TypeVar("M", bound=Member)


def mismatch(prefill: pb.KvFacts, decode: pb.KvFacts) -> str:
    """The first field that keeps them apart, with both values; "" when their cache blocks are interchangeable."""
    for name in FIELDS:
        ours, theirs = getattr(prefill, name), getattr(decode, name)
        if ours != theirs:
            return f"{name} differs ({_told(name, ours)}, {_told(name, theirs)})"
    return "" if prefill.tier else "tier is not set"


def _told(name: str, value: object) -> str:
    return "not shown" if name == "hash_seed" else repr(value)[:80]


def whole(members: Iterable[M]) -> list[M]:
    """Those that take a request from its prompt to its end."""
    return [member for member in members if member.role not in (PREFILL, DECODE)]


def partners(first: Member, members: Iterable[M]) -> list[M]:
    """Decode samplers that can go on with what `first` has cached; none unless that is a prefill sampler."""
    if first.role != PREFILL:
        return []
    return [member for member in members if member.role == DECODE and not mismatch(first.kv, member.kv)]


def pairs(members: Sequence[M]) -> list[tuple[M, M]]:
    """Every (prefill, decode) that is ready."""
    return [(one, other) for one in members for other in partners(one, members)]


def problems(members: Sequence[Member]) -> dict[str, str]:
    """sampler id -> why a prefill or decode sampler has no partner. One that has any is not named."""
    found: dict[str, str] = {}
    ready = {member.sampler_id for pair in pairs(members) for member in pair}
    for member in members:
        if member.role in (PREFILL, DECODE) and member.sampler_id not in ready:
            found[member.sampler_id] = _why(member, members)
    return found


def _why(member: Member, members: Sequence[Member]) -> str:
    wanted = DECODE if member.role == PREFILL else PREFILL
    others = [other for other in members if other.role == wanted]
    if not others:
        return f"there is no {wanted} sampler"
    kv = [(member.kv, other.kv) if wanted == DECODE else (other.kv, member.kv) for other in others]
    return "; ".join(f"{other.sampler_id}: {mismatch(*both)}" for other, both in zip(others, kv, strict=True))
