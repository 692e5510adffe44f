"""One table on the terminal, the same as markdown, and everything as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure
from benchmarks.machine import Machine

COLUMNS = ("figure", "median", "lowest … highest", "n", "target", "", "note")
DURABILITY = "strict (appendfsync always) unless a row says otherwise"
STYLES = {"met": "green", "missed": "bold red"}


class Section(msgspec.Struct, frozen=True):
    """Figures of one benchmark; `error` set: it did not finish. `load`: one-minute load average at its start."""

    benchmark: str
    figures: list[Figure]
    seconds: float
    load: float
    error: str = ""


class Report(msgspec.Struct, frozen=True):
    machine: Machine
    quick: bool
    sections: list[Section]


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value and abs(value) < 0.001:
        return f"{value:.5f}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def cells(figure: Figure) -> tuple[str, ...]:
    low, high = figure.spread
    spread = f"{number(low)} … {number(high)}" if len(figure.samples) > 1 else ""
    median = f"{number(figure.value)} {figure.unit}".strip()
    return figure.name, median, spread, str(len(figure.samples)), figure.target, figure.verdict, figure.note


def facts(report: Report) -> list[str]:
    m = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in m.versions.items())
    return [
        f"machine: {m.cpu}, {m.cores} cores, {m.memory_gib} GiB, {m.system}; load {m.load} at the start",
        f"versions: tinkermesh {m.commit or 'without a commit'}, Python {m.python}, {versions}",
        f"durability: {DURABILITY}",
        f"started {m.started}{'; --quick: too few repetitions to quote' if report.quick else ''}",
    ]


def show(report: Report, console: Console) -> None:
    table = Table(title="tinkermesh benchmarks", caption="\n".join(facts(report)), caption_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("median", "n") else "left")
    for section in report.sections:
        table.add_section()
        table.add_row(f"[bold]{section.benchmark}[/bold]", *[""] * (len(COLUMNS) - 2), _remark(section))
        for figure in section.figures:
            row = cells(figure)
            table.add_row(*row[:5], f"[{STYLES.get(row[5], 'none')}]{row[5]}[/]", row[6])
    console.print(table)


def _remark(section: Section) -> str:
    return section.error or f"{section.seconds:.0f} s, load {section.load}"


def markdown(report: Report) -> str:
    lines = [f"- {fact}" for fact in facts(report)]
    for section in report.sections:
        lines += ["", f"**{section.benchmark}** ({_remark(section)})", ""]
        lines += _markdown_rows(section.figures)
    return "\n".join(lines) + "\n"


def _markdown_rows(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return []
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(cells(figure) for figure in figures)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def write(report: Report, directory: Path) -> tuple[Path, Path]:
    """The paths of the markdown and the JSON file."""
    directory.mkdir(parents=True, exist_ok=True)
    text, data = directory / "benchmarks.md", directory / "benchmarks.json"
    text.write_text(markdown(report))
    data.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return text, data
