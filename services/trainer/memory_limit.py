"""How long a datum may be before its pass would not fit into memory: measured once, at the start.

The engine runs a pass over one datum at a few lengths and tells the peak of each. Attention here
keeps nothing that grows with the square of the length, so bytes(n) = fixed + slope * n; the
steepest slope that was seen is taken, and a margin on top. A datum beyond is refused before any
rank touches it.

What passes may take is what is free then, less what the slots are going to take (OPT-09): all of them
filled with adapters of the largest rank, windows open, moments there, and one capture of each on its way
into the store. On a device, slots that leave no room for passes are refused at the start, not found out in
training. On a CPU slots take memory only as they fill, so passes keep half, and the start says how many fit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.errors import InvalidInput
from services.trainer.control import Control
from services.trainer.engine import Engine, SlotMemory
from services.trainer.failures import RanksDiverged, Status

log = logging.getLogger(__name__)

PROBE_TOKENS = (128, 256, 512)
MARGIN = 1.2
SHARE = 0.9
"""Of the free memory; the rest is for what is neither pass nor slot: units on their way, the other processes."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Of one pass over a datum, beyond what the process holds anyway; `limit` is what it may take, in bytes."""

    fixed: float
    slope: float
    limit: int

    def mebibytes(self, tokens: int) -> int:
        return round((self.fixed + self.slope * tokens) / MEBIBYTE)

    @property
    def bytes_per_token(self) -> int:
        """At `max_tokens`."""
        return max(1, round(self.limit / self.max_tokens))

    @property
    def max_tokens(self) -> int:
        """The longest datum that fits, at least 1."""
        return max(1, int((self.limit - self.fixed) / self.slope))

    def problem(self, tokens: int) -> str:
        """Why a datum of so many tokens is refused; "" = it fits."""
        if tokens <= self.max_tokens:
            return ""
        return (
            f"datum has {tokens} tokens: its pass would take about {self.mebibytes(tokens)} MiB of memory, this pool's "
            f"trainer has {self.limit // MEBIBYTE} MiB for it; send datums of up to {self.max_tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class Reserve:
    """What `slots` slots are going to take; `pending` captures may wait to be written, one more is being written."""

    memory: SlotMemory
    slots: int
    pending: int

    @property
    def images(self) -> int:
        """Captures at one time: of each slot one; more of them are what SHARE leaves."""
        return min(self.slots, self.pending + 1)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.slots * self.memory.slot + self.images * self.memory.image

    def left(self, free: int) -> int:
        """Of `free` bytes for passes."""
        return max(free - self.size, free // 2) if self.memory.lazy else free - self.size

    def fitting(self, room: float) -> int:
        """How many slots `room` bytes are enough for."""
        each = max(1, self.memory.slot + self.memory.image)
        return max(0, int(room // each))


def fit(lengths: Sequence[int], peaks: Sequence[int], limit: int) -> MemoryEstimate:
    """`peaks` in bytes at increasing `lengths`, two at least."""
    points = list(zip(lengths, peaks, strict=True))
    slopes = [(high - low) / (n - m) for (m, low), (n, high) in zip(points[:-1], points[1:], strict=True)]
    slope = max(1.0, *slopes)
    fixed = max(0.0, peaks[-1] - slope * lengths[-1])
    return MemoryEstimate(MARGIN * fixed, MARGIN * slope, limit)


def measure(
    engine: Engine, control: Control, max_context: int, limit_mib: int, *, slots: int, pending: int
) -> MemoryEstimate | None:
    """The smallest estimate of all ranks, so that all refuse alike; None where nothing can be measured.

    `limit_mib` is for each rank; 0 = most of what is free now and `slots` slots leave. `pending` captures may wait
    to be written. Raises InvalidInput when so many slots leave no room for passes on a device.
    """
    lengths = [tokens for tokens in PROBE_TOKENS if tokens <= max_context]
    if len(lengths) < 2:
        return None
    peaks = engine.pass_peaks(lengths)
    free = int(SHARE * engine.free_memory()) if peaks else 0
    reserve = Reserve(engine.slot_memory(), slots, pending)
    stated = limit_mib * MEBIBYTE
    mine = fit(lengths, peaks, stated or reserve.left(free)) if peaks and (stated or free) else None
    estimate = _agreed(control, mine)
    if estimate is None:
        return None
    if not stated and not reserve.memory.lazy:
        _check_room(estimate, reserve, lengths[0])
    elif free and estimate.limit + reserve.size > free:
        _warn(estimate, reserve, free)
    log.info(
        "a pass takes about %d MiB for 1,000 tokens and has %d MiB, beside %d MiB for %d slots: "
        "datums of up to %d tokens fit",
        estimate.mebibytes(1000),
        estimate.limit // MEBIBYTE,
        reserve.size // MEBIBYTE,
        slots,
        estimate.max_tokens,
    )
    return estimate


def _agreed(control: Control, mine: MemoryEstimate | None) -> MemoryEstimate | None:
    found = [_decoded(vote.message) for vote in control.vote(Status(message=_encoded(mine)))]
    known = [estimate for estimate in found if estimate is not None]
    if len(known) < len(found):
        return None
    return min(known, key=lambda one: (one.limit - one.fixed) / one.slope)


def _check_room(estimate: MemoryEstimate, reserve: Reserve, tokens: int) -> None:
    """Raises InvalidInput, on all ranks alike."""
    needed = estimate.fixed + estimate.slope * tokens
    if estimate.limit >= needed:
        return
    room = estimate.limit + reserve.size - needed
    raise InvalidInput(
        f"slots={reserve.slots}: adapters of the largest rank take up to {reserve.size // MEBIBYTE} MiB with their "
        f"gradients, moments and captures, which leaves {estimate.limit // MEBIBYTE} MiB for passes; one over "
        f"{tokens} tokens takes {estimate.mebibytes(tokens)} MiB. Set slots to at most {reserve.fitting(room)}, lower "
        "max_rank, or set memory_limit_mib to what a pass may take if adapters will be smaller"
    )


def _warn(estimate: MemoryEstimate, reserve: Reserve, free: int) -> None:
    log.warning(
        "slots=%d may take %d MiB with adapters of the largest rank, and passes %d MiB, but only %d MiB are free: "
        "about %d such slots fit; lower slots, max_rank or memory_limit_mib",
        reserve.slots,
        reserve.size // MEBIBYTE,
        estimate.limit // MEBIBYTE,
        free // MEBIBYTE,
        reserve.fitting(free - estimate.limit),
    )


def _encoded(estimate: MemoryEstimate | None) -> str:
    return "" if estimate is None else f"{estimate.fixed!r} {estimate.slope!r} {estimate.limit}"


def _decoded(text: str) -> MemoryEstimate | None:
    """Raises RanksDiverged when a rank says something else."""
    if not text:
        return None
    try:
        fixed, slope, limit = text.split()
        return MemoryEstimate(float(fixed), float(slope), int(limit))
    except ValueError as error:
        raise RanksDiverged(f"a rank answered {text[:100]!r} for its memory estimate") from error
