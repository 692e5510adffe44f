"""Which edges between lines of the watched files an execution takes: the feedback of the fuzz loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Edge = tuple[int, int, int]  # number of the code object, line before (0 = entered), line


class Edges:
    """`with edges.recorded() as taken: ...` fills the set `taken`; only this thread is watched."""

    def __init__(self, *folders: Path) -> None:
        self._folders = tuple(str(folder) for folder in folders)
        self._numbers: dict[CodeType, int] = {}
        self._taken: set[Edge] = set()

    @contextmanager
    def recorded(self) -> Iterator[set[Edge]]:
        self._taken = set()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield self._taken
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        number = self._numbers.get(code)
        if number is None:
            number = self._numbers[code] = self._number(code)
        return None if number < 0 else self._follow(number)

    def _follow(self, number: int) -> Any:
        taken, before = self._taken, 0

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                line = frame.f_lineno
                taken.add((number, before, line))
                before = line
            elif event == "exception":
                taken.add((number, before, -frame.f_lineno))
            return step

        return step

    def _number(self, code: CodeType) -> int:
        """Stable over runs, unlike ids: corpora of two runs agree on what is covered."""
        if not code.co_filename.startswith(self._folders):
            return -1
        return len([known for known in self._numbers.values() if known >= 0])
