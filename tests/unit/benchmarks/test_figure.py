"""The arithmetic of a figure: nothing here measures time."""

import pytest

from benchmarks.figure import Figure, parse, quantile


def test_value_is_the_median_and_spread_the_extremes():
    figure = Figure("f", [3.0, 1.0, 2.0, 10.0], "ms")
    assert figure.value == 2.5
    assert figure.spread == (1.0, 10.0)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        ("<= 8", 8.0, "met"),
        ("<= 8", 8.1, "missed"),
        (">= 0.95", 0.95, "met"),
        (">= 0.95", 0.9, "missed"),
        ("", 1.0, ""),
    ],
)
def test_verdict_compares_the_median_with_the_target(target, value, verdict):
    assert Figure("f", [value], "", target).verdict == verdict


def test_a_target_without_a_comparison_is_refused():
    with pytest.raises(ValueError, match="about 8"):
        Figure("f", [1.0], "", "about 8").verdict  # noqa: B018


def test_quantile_is_the_smallest_value_that_covers_the_share():
    values = [float(n) for n in range(100, 0, -1)]
    assert quantile(values, 0.99) == 99.0
    assert quantile(values, 0.5) == 50.0
    assert quantile(values, 1.0) == 100.0
    assert quantile([7.0], 0.99) == 7.0


def test_quantile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_figures_survive_the_line_between_processes(capsys):
    from benchmarks.figure import emit

    figures = [Figure("f", [1.0, 2.0], "ms", "<= 3", "a note")]
    print("something the benchmark said")
    emit(figures)
    assert parse(capsys.readouterr().out) == figures


def test_silence_between_processes_is_an_error():
    with pytest.raises(ValueError, match="no figures"):
        parse("\n")
