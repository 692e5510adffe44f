"""How many of something may be open at a time: in this process, and for one account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.common.errors import Busy


class Places:
    """`what`: their name in the refusal, in the plural."""

    def __init__(self, what: str, per_account: int, in_all: int | None = None) -> None:
        self._what = what
        self._per_account = per_account
        self._in_all = in_all
        self._open: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._open.total()

    @contextmanager
    def held_by(self, account: str) -> Iterator[None]:
        """Raises Busy above a limit."""
        if self._open[account] >= self._per_account:
            raise Busy(f"{self._per_account} {self._what} are open already; wait for some of them")
        if self._in_all is not None and self.taken >= self._in_all:
            raise Busy(f"{self._in_all} {self._what} of all accounts are open here already; try again soon")
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]
