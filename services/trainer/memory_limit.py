"""How long a datum may be before its pass would not fit into memory: measured once, at the start.

The engine runs a pass over one datum at a few lengths and tells the peak of each. Attention here
keeps nothing that grows with the square of the length, so bytes(n) = fixed + slope * n; the
steepest slope that was seen is taken, and a margin on top. A datum beyond is refused before any
rank touches it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from services.trainer.control import Control
from services.trainer.engine import Engine
from services.trainer.failures import RanksDiverged, Status

log = logging.getLogger(__name__)

PROBE_TOKENS = (128, 256, 512)
MARGIN = 1.2
SHARE = 0.9
"""Of the free memory; the rest is for what is not a pass: saves being written, the other processes."""
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


def fit(lengths: Sequence[int], peaks: Sequence[int], limit: int) -> MemoryEstimate:
    """`peaks` in bytes at increasing `lengths`, two at least."""
    points = list(zip(lengths, peaks, strict=True))
    slopes = [(high - low) / (n - m) for (m, low), (n, high) in zip(points[:-1], points[1:], strict=True)]
    slope = max(1.0, *slopes)
    fixed = max(0.0, peaks[-1] - slope * lengths[-1])
    return MemoryEstimate(MARGIN * fixed, MARGIN * slope, limit)


def measure(engine: Engine, control: Control, max_context: int, limit_mib: int) -> MemoryEstimate | None:
    """The smallest estimate of all ranks, so that all refuse alike; None where nothing can be measured.

    `limit_mib` is for each rank; 0 = most of what is free now.
    """
    lengths = [tokens for tokens in PROBE_TOKENS if tokens <= max_context]
    if len(lengths) < 2:
        return None
    peaks = engine.pass_peaks(lengths)
    free = engine.free_memory() if peaks else 0
    mine = _mine(lengths, peaks, int(SHARE * free) if not limit_mib else limit_mib * MEBIBYTE)
    found = [_decoded(vote.message) for vote in control.vote(Status(message=_encoded(mine)))]
    known = [estimate for estimate in found if estimate is not None]
    if len(known) < len(found):
        return None
    estimate = min(known, key=lambda one: one.max_tokens)
    log.info(
        "a pass takes about %d MiB for 1,000 tokens and has %d MiB: datums of up to %d tokens fit",
        estimate.mebibytes(1000),
        estimate.limit // MEBIBYTE,
        estimate.max_tokens,
    )
    return estimate


def _mine(lengths: Sequence[int], peaks: Sequence[int], limit: int) -> MemoryEstimate | None:
    return fit(lengths, peaks, limit) if peaks and limit > 0 else None


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
