"""What a campaign came to, for people."""

from __future__ import annotations

from collections import Counter
from typing import Any


def summary(results: list[dict[str, Any]], seconds: float) -> str:
    happened = [fault for one in results for fault in one["faults"] if fault["where"]]
    kinds = Counter(f"{fault['signal']} {_kind(fault)}" for fault in happened)
    points = Counter(fault["where"] for fault in happened if fault["where"] != "time")
    answers: Counter[str] = Counter()
    for one in results:
        answers.update(one["answers"])
    bad = sorted(one["seed"] for one in results if one["violations"])
    lines = [
        f"histories     {len(results)}, {sum(one['commands'] for one in results)} commands, {seconds:.0f} s now",
        f"faults        {len(happened)}: " + ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())),
        f"at points     {sum(points.values())}, {len(points)} different ones",
        "answers       " + ", ".join(f"{name} {count}" for name, count in answers.most_common()),
        f"violations    {len(bad)}" + (f": seeds {' '.join(map(str, bad))}" if bad else ""),
    ]
    return "\n".join(lines)


def _kind(fault: dict[str, Any]) -> str:
    return (fault["victim"] or fault["holder"]).split("-")[0]
