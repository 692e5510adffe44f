"""``python -m benchmarks [NAME ...] [--quick]``: measures, prints one table, writes out/benchmarks.{md,json}."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console

from benchmarks import machine, report
from benchmarks.registry import Run, benchmarks

OUT = Path("out")


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few and short repetitions: shows that all of it runs")
    parser.add_argument("--out", type=Path, default=OUT, help="directory for the table and the raw samples")
    found = parser.parse_args()
    unknown = sorted(set(found.names) - set(names))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(names)}")
    return found


def _section(name: str, run: Run, quick: bool) -> report.Section:
    started, load = time.monotonic(), machine.load()
    try:
        figures, error = run(quick), ""
    except Exception as failure:  # noqa: BLE001 - one benchmark's failure must not lose the others' figures
        traceback.print_exc()
        figures, error = [], f"did not finish: {failure!r}"
    return report.Section(name, figures, time.monotonic() - started, load, error)


def main() -> int:
    known = benchmarks()
    arguments = _arguments(list(known))
    console = Console(width=None if sys.stdout.isatty() else 200)
    described, sections = machine.describe(), []
    for name in arguments.names or known:
        console.print(f"{name} …", style="dim")
        sections.append(_section(name, known[name], arguments.quick))
        finished = report.Report(described, arguments.quick, sections)
        text, data = report.write(finished, arguments.out)  # after each: half an hour is not lost to a cut
    report.show(finished, console)
    console.print(f"written: {text} and {data}")
    return 1 if any(section.error for section in sections) else 0


if __name__ == "__main__":
    sys.exit(main())
