"""Measured numbers beside the tolerance they must keep and a control that must break it, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

HEADER = ("claim", "subject", "measured", "tolerance", "negative control", "control measured")


class Claim(Enum):
    """What the numbers stand for, in the order of the table."""

    LOGPROBS = "trainer's logprobs = transformers' (float32), max abs"
    LOSS = "loss = closed form, max abs"
    LOSS_GRADIENT = "dloss/dlogprob = closed form, max abs"
    FINITE_DIFFERENCES = "dloss/dlogprob = central differences, max abs"
    GRADIENTS = "adapter gradients = PEFT's, worst relative"
    SAMPLER = "sampler's logprobs = trainer's on one snapshot, max abs"
    EXPORT = "exported adapter in PEFT = trainer's logprobs of all tokens, max abs"
    TENSOR_PARALLEL = "TP2 = one rank, worst relative"
    DATA_PARALLEL = "DP2 = one rank, worst relative"
    PACKED = "8 mixed ranks packed beside a loss 1e6 larger = solo, worst relative"
    RESUME = "save, load elsewhere, step = uninterrupted, max abs"


class Row(NamedTuple):
    claim: Claim
    subject: str
    measured: float
    tolerance: float  # 0 = bitwise
    control: str
    control_measured: float


class Measurements:
    """`measured(...)` keeps a number for the table, then insists on it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, claim: Claim, subject: str, measured: float, *, within: float, **controls: float) -> None:
        """Raises AssertionError above `within`, or when a control (``what_was_broken=number``) is not above it."""
        assert controls, "a tolerance that nothing breaks shows nothing"
        for name, control in controls.items():
            self.rows.append(Row(claim, subject, float(measured), within, name.replace("_", " "), float(control)))
        assert measured <= within, f"{claim.value}: {subject}: {measured:.3g} > {within:g}"
        for name, control in controls.items():
            assert control > within, (
                f"{claim.value}: {subject}: {name.replace('_', ' ')} passes too: {control:.3g} <= {within:g}"
            )


def missing(rows: Iterable[Row]) -> list[str]:
    """Claims without a number."""
    seen = {row.claim for row in rows}
    return [claim.value for claim in Claim if claim not in seen]


def render(rows: Iterable[Row]) -> list[str]:
    """The lines of a Markdown table, its columns aligned."""
    order = list(Claim)
    cells = [HEADER, *(_cells(row) for row in sorted(rows, key=lambda row: order.index(row.claim)))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = [_line([cell.ljust(width) for cell, width in zip(line, widths, strict=True)]) for line in cells]
    return [lines[0], _line(["-" * width for width in widths]), *lines[1:]]


def _cells(row: Row) -> tuple[str, ...]:
    number: Callable[[float], str] = "{:.2g}".format
    tolerance = number(row.tolerance) if row.tolerance else "0 (bitwise)"
    return row.claim.value, row.subject, number(row.measured), tolerance, row.control, number(row.control_measured)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
