"""Named points inside a running service, and what happens when one is reached.

The services know nothing of this: `tests.chaos.launcher` wraps their seams from outside before it
runs them. A test arms a point through a file, which every passage looks at::

    [{"id": "a1", "point": "redis:unit_settle:after", "nth": 2, "signal": 9, "victim": {"pid": 7, "start": 4711}}]

At the nth passage since the process saw it, `signal` goes to `victim`, or to the process itself
when there is none. An arm fires once, whichever process reaches it first: it leaves a file
``fired-<id>`` behind.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any


class Points:
    """Of one process."""

    def __init__(self, directory: Path, process: str) -> None:
        self._directory = directory
        self._arms_file = directory / f"{process}.arms"
        self._stamp = 0
        self._arms: list[dict[str, Any]] = []
        self._passed: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self._refresh()
        for arm in self._arms:
            if arm["point"] == point:
                self._passed[arm["id"]] += 1
                if self._passed[arm["id"]] == arm["nth"]:
                    self._fire(arm)

    def _refresh(self) -> None:
        try:
            stamp = os.stat(self._arms_file).st_mtime_ns  # noqa: PTH116 - on every passage
        except FileNotFoundError:
            return
        if stamp != self._stamp:
            self._stamp, self._arms = stamp, json.loads(self._arms_file.read_text())

    def _fire(self, arm: dict[str, Any]) -> None:
        try:
            with (self._directory / f"fired-{arm['id']}").open("x") as file:
                file.write(json.dumps({"at": time.time(), "point": arm["point"], "pid": os.getpid()}))
        except FileExistsError:
            return
        victim = arm.get("victim")
        if victim is None:
            strike(os.getpid(), arm["signal"])
        elif started(victim["pid"]) == victim["start"]:
            strike(victim["pid"], arm["signal"])


def strike(pid: int, number: int) -> None:
    """The process and, where it leads one, its group."""
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return


def started(pid: int) -> int:
    """When the process began, in clock ticks since boot: with the pid it names one process for ever. 0 = none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def arm(directory: Path, process: str, arms: list[dict[str, Any]]) -> None:
    """Replaces what is armed in `process`."""
    temporary = directory / f".{process}.arms"
    temporary.write_text(json.dumps(arms))
    temporary.replace(directory / f"{process}.arms")


def fired(directory: Path, arm_id: str) -> dict[str, Any] | None:
    """When and where an arm fired. The file may still be empty for a moment."""
    try:
        text = (directory / f"fired-{arm_id}").read_text()
    except FileNotFoundError:
        return None
    return dict(json.loads(text)) if text else {}


# ---- seams ------------------------------------------------------------------------------------


def around_call(owner: Any, name: str, before: str, after: str, points: Points) -> None:
    """`owner.name` is a plain function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        points.reach(before)
        answer = original(*args, **options)
        points.reach(after)
        return answer

    setattr(owner, name, wrapped)


def around_coroutine(
    owner: Any, name: str, before: str, after: str, points: Points, label: Callable[..., str] | None = None
) -> None:
    """`owner.name` is a coroutine method; ``{}`` in the names is `label` of its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    async def wrapped(*args: Any, **options: Any) -> Any:
        said = label(*args, **options) if label else ""
        points.reach(before.format(said))
        answer = await original(*args, **options)
        points.reach(after.format(said))
        return answer

    setattr(owner, name, wrapped)


def around_stream(owner: Any, name: str, before: str, after: str, points: Points) -> None:
    """`owner.name` is an asynchronous generator method; `after` is before its first answer leaves."""
    original = getattr(owner, name)

    @functools.wraps(original)
    async def wrapped(*args: Any, **options: Any) -> AsyncIterator[Any]:
        points.reach(before)
        first = True
        async for part in original(*args, **options):
            if first:
                points.reach(after)
            first = False
            yield part

    setattr(owner, name, wrapped)


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
CONTINUE = signal.SIGCONT
