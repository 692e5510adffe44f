"""What each recipe was run with and what came out: one row a recipe, printed and kept as out/cookbook.md."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cookbook.recipe import Kitchen, Metrics

OUT = Path(__file__).resolve().parents[2] / "out" / "cookbook.md"


class Results:
    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str]] = []

    def add(self, recipe: str, arguments: str, result: str, seconds: float) -> None:
        self._rows.append((recipe, arguments, result, f"{seconds:.0f} s"))

    def table(self) -> str:
        lines = ["| recipe | arguments | result | took |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{recipe}` | `{arguments}` | {result} | {took} |" for recipe, arguments, result, took in self._rows
        ]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        if self._rows:
            OUT.parent.mkdir(exist_ok=True)
            OUT.write_text(self.table())


class Table:
    """Runs a recipe in `kitchen` and notes its row in `results`; `note` belongs to the latest run."""

    def __init__(self, kitchen: Kitchen, results: Results, directory: Path) -> None:
        self._kitchen, self._results = kitchen, results
        self.log_path = directory / "run"
        self._row = ("", "")
        self._seconds = 0.0

    def run(self, recipe: str, *arguments: str) -> Metrics:
        began = time.monotonic()
        metrics = self._kitchen.cook(recipe, *arguments, log_path=self.log_path)
        self._row, self._seconds = (Path(recipe).name, " ".join(arguments)), time.monotonic() - began
        return metrics

    def note(self, result: str) -> None:
        self._results.add(*self._row, result, self._seconds)
