"""Which request made a shared unit fail: its halves run again, and halves of the half that fails.

A request whose unit failed gets a group label, and only equal labels share a unit until it
succeeds. n requests with one offender cost 2 * ceil(log2 n) units; what fails only in company
succeeds as soon as the company is parted.
"""

from __future__ import annotations

from collections.abc import Sequence

_RETRIED = "r"


def next_groups(unit_id: str, labels: Sequence[str], *, transient: bool) -> list[str]:
    """The requests' new labels after their unit failed as a whole; empty: nothing is left to try.

    `labels` are those the requests ran under, in unit order. What the trainer calls `transient`
    is tried once more as it was.
    """
    retried = any(label.endswith(_RETRIED) for label in labels)
    if transient and not retried:
        return [f"{unit_id}.{_RETRIED}"] * len(labels)
    if len(labels) < 2:
        return []
    first_half = (len(labels) + 1) // 2
    mark = _RETRIED if retried else ""
    return [f"{unit_id}.{int(index >= first_half)}{mark}" for index in range(len(labels))]
