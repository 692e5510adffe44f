"""The formulas of docs/sizing.md as they stand there, so that tests measure what readers calculate with."""

from __future__ import annotations

import re
from pathlib import Path

from redis.asyncio import Redis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizing.md"
_ROW = re.compile(r"^\| (?P<what>[^|`,]+)(, `\w+`)? \| `(?P<formula>[^`]+)`")
_ARITHMETIC = re.compile(r"[\w\s.*/+()-]+")


def formula(what: str) -> str:
    """The formula of the row that begins with `what`."""
    rows = [match for line in PAGE.read_text().splitlines() if (match := _ROW.match(line))]
    found = [row["formula"] for row in rows if row["what"] == what]
    assert len(found) == 1, f"docs/sizing.md has {len(found)} formulas for {what!r}"
    return found[0]


def bytes_of(what: str, **numbers: float) -> float:
    """Its value."""
    text = formula(what)
    assert _ARITHMETIC.fullmatch(text), f"{what}: {text!r} is no arithmetic"
    return float(eval(text, {"__builtins__": {}}, numbers))  # noqa: S307 - this repository's own page, checked above


async def memory_of_keys(redis: Redis) -> int:
    """Bytes of all keys with their contents; the server's own buffers, and what it frees later, are not in it."""
    names = {key async for key in redis.scan_iter(count=1000)}  # a scan may name one twice
    pipe = redis.pipeline(transaction=False)
    for key in names:
        pipe.memory_usage(key, samples=0)
    return sum(size or 0 for size in await pipe.execute())
