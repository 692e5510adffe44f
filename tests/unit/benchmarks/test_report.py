from io import StringIO

from rich.console import Console

from benchmarks.figure import Figure
from benchmarks.machine import describe
from benchmarks.report import Report, Section, markdown, number, show, write


def _report():
    met = Figure("control p50", [1.0, 3.0, 2.0], "ms", "<= 8", "alone")
    missed = Figure("control p99", [50.0], "ms", "<= 40")
    broken = Section("other", [], 0.1, 0.0, "did not finish: a|b")
    return Report(describe(), False, [Section("latency", [met, missed], 3.0, 0.1), broken])


def test_numbers_keep_three_digits_without_an_exponent():
    assert [number(v) for v in (12345.6, 123.4, 12.34, 1.234, 0.1234, 0.00012)] == [
        "12,346",
        "123",
        "12.3",
        "1.23",
        "0.123",
        "0.00012",
    ]


def test_markdown_shows_median_spread_target_and_verdict():
    text = markdown(_report())
    assert "| control p50 | 2.00 ms | 1.00 … 3.00 | 3 | <= 8 | met | alone |" in text
    assert "| control p99 | 50.0 ms |  | 1 | <= 40 | missed |  |" in text
    assert "did not finish" in text


def test_terminal_table_names_every_figure_and_the_machine():
    console = Console(file=StringIO(), width=200)
    show(_report(), console)
    shown = console.file.getvalue()
    assert "control p99" in shown
    assert "cores" in shown
    assert "strict" in shown


def test_files_hold_the_raw_samples(tmp_path):
    text, data = write(_report(), tmp_path / "deep")
    assert "control p50" in text.read_text()
    assert '"samples": [1.0, 3.0, 2.0]' in " ".join(data.read_text().split()).replace("[ ", "[").replace(" ]", "]")
