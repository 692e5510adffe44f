"""Turns between tenants: arrival order within a tenant, one after the other between them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """With `fair` off there is one line for all, in arrival order."""

    def __init__(self, *, fair: bool = True) -> None:
        self._fair = fair
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def join(self, tenant_id: str, item: T) -> None:
        self._line(tenant_id).append(item)

    def rejoin(self, tenant_id: str, item: T) -> None:
        """Back to the head of its line."""
        self._line(tenant_id).appendleft(item)

    def peek(self) -> T | None:
        for line in self._lines.values():
            return line[0]
        return None

    def take(self) -> T:
        """The item `peek` shows; its tenant goes behind the others. Raises IndexError when empty."""
        if not self._lines:
            raise IndexError("nobody waits")
        tenant_id, line = next(iter(self._lines.items()))
        item = line.popleft()
        if line:
            self._lines.move_to_end(tenant_id)
        else:
            del self._lines[tenant_id]
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

    def _line(self, tenant_id: str) -> deque[T]:
        return self._lines.setdefault(tenant_id if self._fair else "", deque())
