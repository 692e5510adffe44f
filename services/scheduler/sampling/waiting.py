"""A sample in the hands of the lease holder."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.store.sampling import WaitingSample

MAX_LOSSES = 3


@dataclass(slots=True, eq=False)
class Waiting:
    """Times are the event loop's; `troubled_since` 0 = no attempt of it went wrong so far."""

    sample: WaitingSample
    joined_at: float
    troubled_since: float = 0.0
    attempts: int = 0
    lost_on: set[str] = field(default_factory=set)  # incarnations that went away under it

    @property
    def key(self) -> str:
        return self.sample.key

    @property
    def tenant_id(self) -> str:
        return self.sample.tenant_id

    @property
    def adapter_name(self) -> str:
        return self.sample.adapter.name if self.sample.adapter else ""

    @property
    def given_up(self) -> bool:
        """It took so many samplers with it that it may be the cause."""
        return len(self.lost_on) >= MAX_LOSSES

    def trouble(self, now: float) -> float:
        """Seconds since its first attempt that went wrong, which may be this one."""
        self.attempts += 1
        self.troubled_since = self.troubled_since or now
        return now - self.troubled_since
