"""Weighted turns between tenants: arrival order within a tenant, start-time fair queueing between them.

Each tenant owns a finish tag. Its next item starts at the greater of that tag and the virtual time,
which is the start of what was taken last: an idle tenant saves up no credit. The smallest start goes
first, ties to whoever waits longest; an item moves its tenant's tag by its cost over the weight.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """With `fair` off there is one line for all, in arrival order. `weights` may change; 1 unless named."""

    def __init__(
        self,
        *,
        fair: bool = True,
        weights: Mapping[str, float] | None = None,
        cost: Callable[[T], float] = lambda _item: 1.0,
    ) -> None:
        self._fair = fair
        self._weights: Mapping[str, float] = {} if weights is None else weights
        self._cost = cost
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        self._finish: dict[str, float] = {}
        self._virtual = 0.0

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def join(self, tenant_id: str, item: T) -> None:
        self._line(tenant_id).append(item)

    def rejoin(self, tenant_id: str, item: T) -> None:
        """Back to the head of its line; what it was charged is given back."""
        self._line(tenant_id).appendleft(item)
        line = tenant_id if self._fair else ""
        if line in self._finish:
            self._finish[line] -= self._share(line, item)

    def peek(self) -> T | None:
        return self._lines[self._next()][0] if self._lines else None

    def take(self) -> T:
        """The item `peek` shows. Raises IndexError when empty."""
        if not self._lines:
            raise IndexError("nobody waits")
        line = self._next()
        item = self._lines[line].popleft()
        self._virtual = self._start(line)
        self._finish[line] = self._virtual + self._share(line, item)
        if self._lines[line]:
            self._lines.move_to_end(line)
        else:
            del self._lines[line]
        if not self._lines:
            self._finish.clear()  # turns count only where tenants compete
        return item

    def all(self) -> list[T]:
        return [item for line in self._lines.values() for item in line]

    def remove(self, item: T) -> None:
        for tenant_id, line in list(self._lines.items()):
            if item in line:
                line.remove(item)
                if not line:
                    del self._lines[tenant_id]
                return

    def _next(self) -> str:
        """The first of the smallest starts: lines are kept with the longest-waiting first."""
        return min(self._lines, key=self._start)

    def _start(self, line: str) -> float:
        return max(self._finish.get(line, 0.0), self._virtual)

    def _share(self, line: str, item: T) -> float:
        return self._cost(item) / self._weights.get(line, 1.0)

    def _line(self, tenant_id: str) -> deque[T]:
        return self._lines.setdefault(tenant_id if self._fair else "", deque())
