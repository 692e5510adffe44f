"""Faults a test injects into a double: by a control file (other process) or `Faults.add`.

Control file: a JSON list of rules, re-read before every unit or sample.

    {"kind": "pass", "action": "die_after", "times": 1, "skip": 2, "seconds": 0.5, "datum": 0}

kind    init | load | save | snapshot | unload | pass | optim | publish | "" = any
        sample: with its streams; sample.stream: only those; load_adapter
action  delay_before | delay_after    sleep `seconds`
        hold_before | hold_after      wait until the rule is gone (at most HOLD_SECONDS)
        fail                          the whole unit fails (server category)
        fail_user                     the whole unit fails (user category)
        fail_datum                    datum `datum` of the pass fails and contributes nothing
        fail_transient                the whole unit fails, marked as worth another try
        skip_step                     an optimizer step finds a gradient that is not finite: skipped
        drop_reply                    executed, but the RPC answers UNAVAILABLE
        die_before | die_after        SIGKILL of this process, before or after taking effect
        hold_token | fail_token | cut_token | die_token     a stream that has told `tokens` tokens waits until the rule
                                      is gone, fails as unavailable, ends without a finish, or the process dies (after
                                      `seconds`: a caller who is slower than that loses what it has not read)
        delay_token                   `seconds` before each token of a stream
length  only passes that hold a datum of so many tokens (0 = any unit): what poison looks like
skip    leave that many matching executions alone first; times: then apply to that many (0 = always)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

HOLD_SECONDS = 600.0
POLL_SECONDS = 0.01


@dataclass(slots=True, eq=False)
class Rule:
    action: str
    kind: str = ""
    times: int = 1
    skip: int = 0
    seconds: float = 0.0
    datum: int = 0
    length: int = 0
    tokens: int = 0
    seen: int = 0

    def fires(self, kind: str, lengths: Collection[int] = ()) -> bool:
        """Counts one matching execution; `lengths`: of the datums it holds."""
        if self.kind not in ("", kind, kind.partition(".")[0]) or (self.length and self.length not in lengths):
            return False
        self.seen += 1
        late = self.times and self.seen > self.skip + self.times
        return self.seen > self.skip and not late


@dataclass(slots=True)
class Faults:
    control: Path | None = None
    rules: list[Rule] = field(default_factory=list)
    _stamp: int = 0

    def add(self, action: str, kind: str = "", **options: int | float) -> Rule:
        rule = Rule(action, kind, **options)  # type: ignore[arg-type]
        self.rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        self.rules.remove(rule)

    def due(self, kind: str, lengths: Collection[int] = ()) -> list[Rule]:
        self.refresh()
        return [rule for rule in self.rules if rule.fires(kind, lengths)]

    async def apply_waits(self, due: list[Rule], when: str) -> None:
        """`when` is before or after."""
        for rule in due:
            if rule.action == f"delay_{when}":
                await asyncio.sleep(rule.seconds)
            if rule.action == f"hold_{when}":
                await self.hold(rule)

    async def hold(self, rule: Rule) -> None:
        async with asyncio.timeout(HOLD_SECONDS):
            while rule in self.rules:
                await asyncio.sleep(POLL_SECONDS)
                self.refresh()

    def refresh(self) -> None:
        if self.control is None:
            return
        try:
            stamp = self.control.stat().st_mtime_ns
            if stamp == self._stamp:
                return
            rules = [Rule(**entry) for entry in json.loads(self.control.read_text())]
        except (FileNotFoundError, json.JSONDecodeError):
            return
        self._stamp, self.rules = stamp, rules


def write_rules(control: Path, rules: list[dict[str, object]]) -> None:
    """Replaces the control file at once, so a double never reads half of it."""
    temporary = control.with_suffix(".tmp")
    temporary.write_text(json.dumps(rules))
    temporary.replace(control)
