"""Write the tables of docs/metrics.md from what the services declare.

Usage: python tools/metrics_doc.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from services.common.metrics import COMMON, PROCESS, Declared
from services.gateway.metrics import GATEWAY
from services.sampler.kv_metrics import SAMPLER
from services.scheduler.metrics import SCHEDULER
from services.scheduler.pool_metrics import POOL
from services.trainer.metrics import TRAINER

TARGET = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
BEGIN = "<!-- the tables below are written by tools/metrics_doc.py -->"

SECTIONS: dict[str, Iterable[Declared]] = {
    "Every service": [*COMMON.declared, *PROCESS],
    "Gateway": GATEWAY.declared,
    "Scheduler, each replica its own": SCHEDULER.declared,
    "Pools, by the leader of each": POOL.declared,
    "Trainer": TRAINER.declared,
    "Sampler": SAMPLER.declared,
}


def table(title: str, declared: Iterable[Declared]) -> str:
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.meaning} |"
        for one in declared
    ]
    return "\n".join([f"### {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def page() -> str:
    """The page as it should be; what stands above the tables is written by hand."""
    head = TARGET.read_text().partition(BEGIN)[0]
    return "\n\n".join([head + BEGIN, *(table(title, declared) for title, declared in SECTIONS.items())]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the page is up to date instead of writing it")
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == page() else 1
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
