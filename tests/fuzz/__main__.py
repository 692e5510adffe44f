"""``python -m tests.fuzz --seconds 600``: fuzz every target for its share of the time; exit 1 on a finding.

--keep replaces tests/fuzz/corpus by the few inputs that cover what was found.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.fuzz.http_target import http
from tests.fuzz.loop import Fuzzer, load, save
from tests.fuzz.targets import Target, decoders

CORPUS = Path(__file__).parent / "corpus"
KEPT_PER_TARGET = 64
FINDINGS = Path("fuzz-findings")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of all targets together")
    parser.add_argument("--target", action="append", help="this one only; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = False
    with ExitStack() as stack:
        targets = list(_targets(stack, arguments.target))
        for target in targets:
            failed |= _fuzz(target, arguments.seconds / len(targets), arguments.seed, keep=arguments.keep)
    return int(failed)


def _targets(stack: ExitStack, wanted: list[str] | None) -> Iterator[Target]:
    for name, target in decoders().items():
        if not wanted or name in wanted:
            yield target
    if not wanted or "http" in wanted:
        yield stack.enter_context(http())


def _fuzz(target: Target, seconds: float, seed: int, *, keep: bool) -> bool:
    fuzzer = Fuzzer(target, seed, load(CORPUS / target.name))
    report = fuzzer.run(seconds)
    print(report, flush=True)
    for data, text in report.findings[:5]:
        print(f"  {text}\n  {data[:200]!r}", flush=True)
    if report.findings:
        save(FINDINGS / target.name, [data for data, _ in report.findings])
    if keep and not report.findings:
        shutil.rmtree(CORPUS / target.name, ignore_errors=True)
        save(CORPUS / target.name, fuzzer.essential(KEPT_PER_TARGET))
    return bool(report.findings)


if __name__ == "__main__":
    sys.exit(main())
