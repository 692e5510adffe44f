"""Batch results out of their parts."""

from __future__ import annotations

import numpy as np
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.results import join_batches, join_metrics


def _part(losses: list[float], lengths: list[int], metrics: dict[str, float]) -> types.BatchResult:
    logprobs = np.concatenate([np.full(n, -loss, "<f4") for loss, n in zip(losses, lengths, strict=True)])
    return types.BatchResult(
        loss_sum=sum(losses),
        datum_losses=losses,
        lengths=lengths,
        widths=[1] * len(lengths),
        logprobs=logprobs.tobytes(),
        metrics=metrics,
    )


def test_parts_join_in_the_requests_own_order_ORD_09_API_13() -> None:
    whole = join_batches([_part([1.0], [2], {"loss:sum": 1.0}), _part([2.0, 3.0], [9, 4], {"loss:sum": 5.0})])
    assert list(whole.lengths) == [2, 9, 4]
    assert list(whole.datum_losses) == [1.0, 2.0, 3.0]
    assert whole.loss_sum == 6.0
    assert whole.metrics["loss:sum"] == 6.0
    expected = np.repeat(np.array([-1, -2, -3], "<f4"), [2, 9, 4])
    assert np.array_equal(np.frombuffer(whole.logprobs, "<f4"), expected)


def test_parts_keep_which_datums_are_columns() -> None:
    first, second = _part([1.0], [2], {}), _part([2.0, 3.0], [9, 4], {})
    first.columns.append(0)
    second.columns.append(1)
    assert list(join_batches([first, second]).columns) == [0, 2]


def test_metrics_reduce_by_their_suffix() -> None:
    parts = [
        ({"a:sum": 1.0, "b:mean": 1.0, "c:min": 1.0, "d:max": 1.0, "e:unique": 7.0}, 1),
        ({"a:sum": 2.0, "b:mean": 4.0, "c:min": 0.0, "d:max": 3.0, "e:unique": 8.0, "late:sum": 5.0}, 2),
    ]
    joined = join_metrics(parts)
    assert joined == {
        "a:sum": 3.0,
        "b:mean": pytest.approx(3.0),
        "c:min": 0.0,
        "d:max": 3.0,
        "e:unique": 7.0,
        "late:sum": 5.0,
    }
