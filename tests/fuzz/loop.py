"""Coverage-guided fuzzing: an input that takes a new edge is kept and changed further."""

from __future__ import annotations

import hashlib
import random
import resource
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from services.common.errors import UserError
from tests.fuzz.edges import Edge, Edges
from tests.fuzz.targets import Finding, Target

MEASURED_EVERY = 64  # executions between two whose memory is measured
SLOWEST_SECONDS = 20.0  # of a machine that does much else; an idle one takes milliseconds
RSS_GROWTH = 256 << 20
KEPT_BYTES = 2048


@dataclass
class Report:
    target: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    seed_edges: int = 0
    kept: int = 0
    slowest: float = 0.0
    peak_bytes: int = 0
    rss_growth: int = 0
    findings: list[tuple[bytes, str]] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.executions / max(self.seconds, 1e-9)
        return (
            f"{self.target:12} {self.executions:9,} executions  {rate:7,.0f}/s  {self.edges:5} edges "
            f"(seeds {self.seed_edges})  {self.kept:4} kept  slowest {1000 * self.slowest:6.0f} ms  "
            f"peak {self.peak_bytes / 2**20:5.1f} MiB  rss +{self.rss_growth / 2**20:4.0f} MiB  "
            f"{len(self.findings)} findings"
        )


class Fuzzer:
    """`corpus` starts with the target's seeds and what was kept before."""

    def __init__(self, target: Target, seed: int, known: Iterable[bytes] = ()) -> None:
        self._target = target
        self._rng = random.Random(seed)
        self._edges = Edges(*target.folders)
        self._covered: set[Edge] = set()
        self.corpus: dict[bytes, set[Edge]] = {}
        self.report = Report(target.name)
        for data in (*target.seeds, *known):
            self._execute(data, always=True)
        self.report.seed_edges = len(self._covered)

    def run(self, seconds: float, most: int = 1 << 62) -> Report:
        report, started, rss = self.report, time.monotonic(), _rss()
        entries = list(self.corpus)
        while (spent := time.monotonic() - started) < seconds and report.executions < most and not report.findings:
            # Recent finds lead on: half the time one of the last few.
            recent = self._rng.random() < 0.5
            parent = self._rng.choice(entries[-16:] if recent else entries)
            if self._execute(self._target.mutate(self._rng, parent, entries), always=False):
                entries = list(self.corpus)
        report.seconds += min(spent, seconds)
        report.rss_growth = max(report.rss_growth, _rss() - rss)
        if report.rss_growth > RSS_GROWTH:
            report.findings.append((b"", f"the process grew by {report.rss_growth} bytes"))
        report.edges, report.kept = len(self._covered), len(self.corpus)
        return report

    def essential(self, most: int) -> list[bytes]:
        """Few small inputs that cover what all of them do, as far as `most` go."""
        left, chosen = set(self._covered), []
        candidates = [data for data in self.corpus if len(data) <= KEPT_BYTES]
        while left and len(chosen) < most and candidates:
            best = max(candidates, key=lambda data: (len(self.corpus[data] & left), -len(data)))
            if not self.corpus[best] & left:
                break
            left -= self.corpus[best]
            chosen.append(best)
        return chosen

    def _execute(self, data: bytes, *, always: bool) -> bool:
        """Whether it took a new edge."""
        report = self.report
        report.executions += 1
        started = time.monotonic()
        if report.executions % MEASURED_EVERY == 0:
            self._measure(data)
            return False
        with self._edges.recorded() as taken:
            self._guarded(data)
        spent = time.monotonic() - started
        report.slowest = max(report.slowest, spent)
        if spent > SLOWEST_SECONDS:
            report.findings.append((data, f"took {spent:.1f} s"))
        new = not taken <= self._covered
        if new or (always and data not in self.corpus):
            self._covered |= taken
            self.corpus[data] = taken
        return new

    def _measure(self, data: bytes) -> None:
        tracemalloc.start()
        try:
            self._guarded(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.report.peak_bytes = max(self.report.peak_bytes, peak)
        if peak > self._target.ceiling:
            self.report.findings.append((data, f"allocated {peak} bytes at once"))

    def _guarded(self, data: bytes) -> None:
        try:
            self._target.run(data)
        except UserError:
            pass
        except Finding as error:
            self.report.findings.append((data, str(error)))
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            self.report.findings.append((data, f"{type(error).__name__}: {error}"))


def _rss() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def load(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob("*")) if file.is_file()]


def save(folder: Path, inputs: Iterable[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / hashlib.blake2b(data, digest_size=8).hexdigest()).write_bytes(data)
